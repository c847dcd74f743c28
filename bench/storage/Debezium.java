package io.debezium.connector.cassandra;

import java.io.File;
import java.io.FileInputStream;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.file.Path;

import io.debezium.config.Configuration;
import io.debezium.connector.base.ChangeEventQueue;
import io.debezium.connector.cassandra.metrics.CassandraStreamingMetrics;
import io.debezium.connector.cassandra.transforms.CassandraTypeDeserializer;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.storage.Converter;

/**
 * Runs the decode stage of Debezium's connector over commit log segments: its segment reader and handler make
 * ChangeRecords and put them into its queue, from which a second thread takes them, as in the connector.
 *
 * Arguments: a file for the results, a file of the connector's properties, how many passes, how far to go, and the
 * segments. `records`: the second thread only takes the records. `structs`: it makes key and value of each, as Structs.
 * `json`: it makes of those what goes to Kafka, by the connector's converters.
 * Each pass prints its records, and the CPU and wall seconds of the process.
 */
public final class Debezium
{
    public static void main(String[] args) throws Exception
    {
        PrintStream out = new PrintStream(args[0]);
        CassandraConnectorConfig config;
        try (FileInputStream properties = new FileInputStream(args[1]))
        {
            config = new CassandraConnectorConfig(Configuration.load(properties));
        }
        int passes = Integer.parseInt(args[2]);
        boolean structs = !args[3].equals("records");
        boolean json = args[3].equals("json");
        Cassandra5TypeProvider types = new Cassandra5TypeProvider();
        CassandraTypeDeserializer.init(types.deserializers(), config.getDecimalMode(), config.getVarIntMode(), types.baseTypeForReversedType());
        DefaultCassandraConnectorContext context = new DefaultCassandraConnectorContext(
            config, new CassandraConnectorTask.Cassandra5SchemaLoader(),
            new CassandraConnectorTask.Cassandra5SchemaChangeListenerProvider(), new FileOffsetWriter(config));
        ChangeEventQueue<Event> queue = context.getQueues().get(0);
        CommitLogSegmentReader reader = new Cassandra5CommitLogSegmentReader(context, new CassandraStreamingMetrics(context));
        Converter keys = config.getKeyConverter();
        Converter values = config.getValueConverter();
        com.sun.management.OperatingSystemMXBean system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        for (int pass = 0; pass < passes; pass++)
        {
            long start = System.nanoTime();
            long cpu = system.getProcessCpuTime();
            long[] found = new long[2];
            Thread taking = new Thread(() ->
            {
                try
                {
                    while (true)
                        for (Event event : queue.poll())
                        {
                            if (event instanceof EOFEvent)
                                return;
                            Record record = (Record) event;
                            found[0]++;
                            if (!structs)
                                continue;
                            Struct key = record.buildKey();
                            Struct value = record.buildValue();
                            found[1] += value.getInt64(Record.TIMESTAMP);
                            if (json)
                                found[1] += keys.fromConnectData("t", record.getKeySchema(), key).length
                                          + values.fromConnectData("t", record.getValueSchema(), value).length;
                        }
                }
                catch (InterruptedException e)
                {
                    throw new IllegalStateException(e);
                }
            });
            taking.start();
            for (int i = 4; i < args.length; i++)
            {
                String name = Path.of(args[i]).getFileName().toString();
                long id = Long.parseLong(name.substring(name.lastIndexOf('-') + 1, name.lastIndexOf('.')));
                reader.readCommitLogSegment(new File(args[i]), id, 0);
            }
            queue.enqueue(new EOFEvent(new File(args[args.length - 1])));
            taking.join();
            out.println("{\"rows\":" + found[0] + ",\"sum\":" + found[1] + ",\"cpu\":" + (system.getProcessCpuTime() - cpu) / 1e9 + ",\"wall\":" + (System.nanoTime() - start) / 1e9 + "}");
        }
        out.flush();
        System.exit(0);
    }
}
