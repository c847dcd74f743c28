// Publishes the rows of a CDC log to Kafka as JSON, with ScyllaDB's library scylla-cdc-java.
//
// java -cp ... LogToKafka HOST PORT KEYSPACE TABLE BOOTSTRAP TOPIC WINDOW_MILLISECONDS CONFIDENCE_MILLISECONDS

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.scylladb.cdc.lib.CDCConsumer;
import com.scylladb.cdc.model.worker.ChangeSchema;
import com.scylladb.cdc.model.worker.RawChange;
import com.scylladb.cdc.model.worker.RawChangeConsumer;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class LogToKafka {
    private static final JsonFactory JSON = new JsonFactory();

    public static void main(String[] args) throws Exception {
        Properties options = new Properties();
        options.put("bootstrap.servers", args[4]);
        options.put("acks", "all");
        options.put("linger.ms", "20");
        options.put("batch.size", "262144");
        options.put("compression.type", "lz4");
        ByteArraySerializer bytes = new ByteArraySerializer();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(options, bytes, bytes);
        RawChangeConsumer publish = change -> {
            producer.send(new ProducerRecord<>(args[5], json(change, true), json(change, false)));
            return CompletableFuture.completedFuture(null);
        };
        CDCConsumer consumer = CDCConsumer.builder()
            .addContactPoint(args[0], Integer.parseInt(args[1]))
            .addTable(args[2], args[3])
            .withConsumer(publish)
            .withQueryTimeWindowSizeMs(Long.parseLong(args[6]))
            .withConfidenceWindowSizeMs(Long.parseLong(args[7]))
            .withWorkersCount(2)
            .build();
        consumer.start();
        Thread.currentThread().join();
    }

    // The key columns, or all columns with the operation and the time.
    private static byte[] json(RawChange change, boolean isKey) {
        ByteArrayOutputStream made = new ByteArrayOutputStream();
        try (JsonGenerator out = JSON.createGenerator(made)) {
            out.writeStartObject();
            if (!isKey) {
                out.writeStringField("op", change.getOperationType().name());
                out.writeNumberField("ts", change.getId().getChangeTime().getTimestamp());
            }
            for (ChangeSchema.ColumnDefinition column : change.getSchema().getNonCdcColumnDefinitions()) {
                ChangeSchema.ColumnKind kind = column.getBaseTableColumnKind();
                if (isKey && kind != ChangeSchema.ColumnKind.PARTITION_KEY) {
                    continue;
                }
                Object value = change.getAsObject(column);
                if (value != null) {
                    out.writeStringField(column.getColumnName(), value.toString());
                } else if (!isKey && kind == ChangeSchema.ColumnKind.REGULAR && change.isDeleted(column)) {
                    out.writeNullField(column.getColumnName());
                }
            }
            out.writeEndObject();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return made.toByteArray();
    }
}
