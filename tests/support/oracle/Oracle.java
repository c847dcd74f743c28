import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.UUID;

import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.cql3.CQLFragmentParser;
import org.apache.cassandra.cql3.ColumnIdentifier;
import org.apache.cassandra.cql3.CqlParser;
import org.apache.cassandra.cql3.statements.schema.CreateTypeStatement;
import org.apache.cassandra.db.ClusteringComparator;
import org.apache.cassandra.db.ClusteringPrefix;
import org.apache.cassandra.db.DecoratedKey;
import org.apache.cassandra.db.DeletionTime;
import org.apache.cassandra.db.LivenessInfo;
import org.apache.cassandra.db.Mutation;
import org.apache.cassandra.db.commitlog.CommitLogDescriptor;
import org.apache.cassandra.db.commitlog.CommitLogReadHandler;
import org.apache.cassandra.db.commitlog.CommitLogReader;
import org.apache.cassandra.db.context.CounterContext;
import org.apache.cassandra.db.marshal.ValueAccessor;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.db.rows.ColumnData;
import org.apache.cassandra.db.rows.ComplexColumnData;
import org.apache.cassandra.db.rows.RangeTombstoneMarker;
import org.apache.cassandra.db.rows.Row;
import org.apache.cassandra.db.rows.Unfiltered;
import org.apache.cassandra.db.rows.UnfilteredRowIterator;
import org.apache.cassandra.io.sstable.CQLSSTableWriter;
import org.apache.cassandra.io.sstable.Descriptor;
import org.apache.cassandra.io.sstable.ISSTableScanner;
import org.apache.cassandra.io.sstable.KeyIterator;
import org.apache.cassandra.io.sstable.format.FilterComponent;
import org.apache.cassandra.io.sstable.format.SSTableReader;
import org.apache.cassandra.io.sstable.metadata.StatsMetadata;
import org.apache.cassandra.io.util.File;
import org.apache.cassandra.schema.CQLTypeParser;
import org.apache.cassandra.schema.ColumnMetadata;
import org.apache.cassandra.schema.TableId;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.schema.TableMetadataRef;
import org.apache.cassandra.schema.Types;
import org.apache.cassandra.tools.INodeProbeFactory;
import org.apache.cassandra.tools.NodeProbe;
import org.apache.cassandra.tools.NodeTool;
import org.apache.cassandra.tools.Output;
import org.apache.cassandra.tools.Util;
import org.apache.cassandra.utils.IFilter;
import org.apache.cassandra.utils.bytecomparable.ByteComparable;
import org.apache.cassandra.utils.bytecomparable.ByteSourceInverse;

/** Prints what Cassandra's own classes read, one line of JSON each, values and keys as hexadecimal bytes. */
public class Oracle
{
    private static PrintStream out;

    public static void main(String[] args) throws Exception
    {
        if (args[0].equals("write"))
        {
            write(args[1], Integer.parseInt(args[2]));
            System.exit(0);
        }
        DatabaseDescriptor.toolInitialization();
        Api.initialize();
        if (args[0].equals("serve"))
            serve();
        else
            answer(args);
        System.exit(0);
    }

    /** Answers one line of arguments after the other, until there is none; says after each whether it could. */
    private static void serve() throws Exception
    {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine())
        {
            try
            {
                answer(line.split("\t"));
                System.out.println("answered");
            }
            catch (Throwable e)
            {
                e.printStackTrace(System.out);
                System.out.println("failed");
            }
            System.out.flush();
        }
    }

    private static void answer(String[] args) throws Exception
    {
        out = new PrintStream(Files.newOutputStream(Path.of(args[1])), false, "UTF-8");
        if (args[0].equals("sstable"))
            for (int i = 2; i < args.length; i++)
                sstable(args[i]);
        else if (args[0].equals("statistics"))
            for (int i = 2; i < args.length; i++)
                statistics(args[i]);
        else if (args[0].equals("craft"))
            Craft.craft(args[2]);
        else if (args[0].equals("craft-counters"))
            Craft.counters(args[2], Files.readAllLines(Path.of(args[3])));
        else if (args[0].equals("vints"))
            Order.vints(out, args, 2);
        else if (args[0].equals("order"))
        {
            schema(Files.readString(Path.of(args[2])));
            Order.sort(out, args[3]);
        }
        else if (args[0].equals("compare"))
        {
            schema(Files.readString(Path.of(args[2])));
            Order.compare(out, args[3]);
        }
        else if (args[0].equals("dump"))
            dump(args[2]);
        else if (args[0].equals("nodetool"))
            nodetool(Arrays.copyOfRange(args, 2, args.length));
        else if (args[0].equals("scan"))
            scan(args[2], Integer.parseInt(args[3]));
        else if (args[0].equals("commitlog-scan"))
            scanCommitLog(args);
        else if (args[0].equals("commitlog-ends"))
            commitLogEnds(args);
        else
            commitLog(args);
        out.close();
    }

    /** What `sstabledump -t` does, apart from ending its process. */
    private static void dump(String path) throws Exception
    {
        SSTableReader sstable = open(path);
        try (ISSTableScanner scanner = sstable.getScanner())
        {
            Api.dump(scanner, sstable.metadata(), out);
        }
    }

    private static void nodetool(String[] args)
    {
        INodeProbeFactory connections = new INodeProbeFactory()
        {
            public NodeProbe create(String host, int port) throws IOException
            {
                return new NodeProbe(host, port);
            }

            public NodeProbe create(String host, int port, String username, String password) throws IOException
            {
                return new NodeProbe(host, port, username, password);
            }
        };
        int status = new NodeTool(connections, Output.CONSOLE).execute(args);
        if (status != 0)
            throw new IllegalStateException("nodetool ended with " + status);
    }

    /** Prints what Statistics.db says of a file, and how often its filter and its index find the keys that it has, and others. */
    private static void statistics(String path) throws Exception
    {
        SSTableReader sstable = open(path);
        StatsMetadata found = sstable.getSSTableMetadata();
        long keys = 0, filtered = 0, indexed = 0, others = 0;
        try (IFilter filter = FilterComponent.load(sstable.descriptor); KeyIterator iterator = sstable.keyIterator())
        {
            while (iterator.hasNext())
            {
                DecoratedKey key = iterator.next();
                keys++;
                if (filter.isPresent(key))
                    filtered++;
                if (sstable.getPosition(key, SSTableReader.Operator.EQ) >= 0)
                    indexed++;
                for (int i = 0; i < 100; i++)
                {
                    ByteBuffer other = ByteBuffer.wrap(("another" + keys + "-" + i).getBytes());
                    if (filter.isPresent(sstable.getPartitioner().decorateKey(other)))
                        others++;
                }
            }
        }
        out.println("{\"write_times\":[" + found.minTimestamp + "," + found.maxTimestamp + "],\"deletion_times\":["
                    + found.minLocalDeletionTime + "," + found.maxLocalDeletionTime + "],\"ttls\":[" + found.minTTL + "," + found.maxTTL
                    + "],\"rows\":" + found.totalRows + ",\"columns\":" + found.totalColumnsSet
                    + ",\"clusterings\":" + quote(found.coveredClustering.toString(sstable.metadata().comparator))
                    + ",\"partition_deletions\":" + found.hasPartitionLevelDeletions
                    + ",\"sizes\":" + found.estimatedPartitionSize.count() + ",\"cells\":" + Arrays.toString(found.estimatedCellPerPartitionCount.getBuckets(false))
                    + ",\"keys\":" + keys + ",\"filtered\":" + filtered + ",\"indexed\":" + indexed + ",\"others\":" + others + "}");
    }

    private static SSTableReader open(String path) throws Exception
    {
        Descriptor descriptor = Descriptor.fromFileWithComponent(new File(path), false).left;
        TableMetadata metadata = Util.metadataFromSSTable(descriptor);
        return SSTableReader.openNoValidation(null, descriptor, TableMetadataRef.forOfflineTools(metadata));
    }

    private static void sstable(String path) throws Exception
    {
        SSTableReader sstable = open(path);
        out.println("{\"file\":\"" + path + "\"}");
        try (ISSTableScanner scanner = sstable.getScanner())
        {
            while (scanner.hasNext())
                try (UnfilteredRowIterator partition = scanner.next())
                {
                    print(partition, sstable.metadata().comparator);
                }
        }
    }

    private static void print(UnfilteredRowIterator partition, ClusteringComparator comparator)
    {
        out.println("{\"key\":\"" + hex(partition.partitionKey().getKey()) + "\",\"token\":"
                    + partition.partitionKey().getToken().getTokenValue() + ",\"deletion\":" + json(partition.partitionLevelDeletion()) + "}");
        if (!partition.staticRow().isEmpty())
            print(partition.staticRow(), comparator);
        while (partition.hasNext())
        {
            Unfiltered unfiltered = partition.next();
            if (unfiltered.isRow())
                print((Row) unfiltered, comparator);
            else
                print((RangeTombstoneMarker) unfiltered, comparator);
        }
    }

    private static String position(ClusteringPrefix<?> prefix, ClusteringComparator comparator)
    {
        return hex(ByteBuffer.wrap(ByteSourceInverse.readBytes(comparator.asByteComparable(prefix).asComparableBytes(ByteComparable.Version.OSS50))));
    }

    static <V> String values(ClusteringPrefix<V> prefix)
    {
        List<String> values = new ArrayList<>();
        for (int i = 0; i < prefix.size(); i++)
            values.add(prefix.get(i) == null ? "null" : "\"" + hex(prefix.accessor().toBuffer(prefix.get(i))) + "\"");
        return String.join(",", values);
    }

    private static void print(Row row, ClusteringComparator comparator)
    {
        LivenessInfo marker = row.primaryKeyLivenessInfo();
        StringBuilder line = new StringBuilder("{\"position\":\"" + position(row.clustering(), comparator) + "\",\"marker\":");
        line.insert(1, "\"clustering\":[" + values(row.clustering()) + "],");
        line.append(marker.isEmpty() ? "null" : times(marker.timestamp(), marker.ttl(), marker.localExpirationTime()));
        line.append(",\"deletion\":").append(json(row.deletion().time())).append(",\"cells\":[");
        List<String> cells = new ArrayList<>();
        List<String> columns = new ArrayList<>();
        for (ColumnData data : row)
        {
            if (data.column().isSimple())
            {
                cells.add(json((Cell<?>) data));
                continue;
            }
            ComplexColumnData complex = (ComplexColumnData) data;
            if (!complex.complexDeletion().isLive())
                columns.add("[" + quote(data.column().name.toString()) + "," + json(complex.complexDeletion()) + "]");
            for (Cell<?> cell : complex)
                cells.add(json(cell));
        }
        line.append(String.join(",", cells)).append("],\"columns\":[").append(String.join(",", columns)).append("]}");
        out.println(line);
    }

    private static void print(RangeTombstoneMarker marker, ClusteringComparator comparator)
    {
        String close = marker.isClose(false) ? json(marker.closeDeletionTime(false)) : "null";
        String open = marker.isOpen(false) ? json(marker.openDeletionTime(false)) : "null";
        out.println("{\"bound\":\"" + position(marker.clustering(), comparator) + "\",\"values\":[" + values(marker.clustering()) + "],\"close\":" + close + ",\"open\":" + open + "}");
    }

    private static <V> String json(Cell<V> cell)
    {
        String path = cell.path() == null ? "null" : "\"" + hex(cell.path().get(0)) + "\"";
        ByteBuffer value = cell.buffer();
        String shards = "";
        if (cell.isCounterCell() && !cell.isTombstone())
        {
            shards = ",[" + shards(value) + "]";
            value = ByteBuffer.allocate(8).putLong(0, CounterContext.instance().total(cell));
        }
        return "[" + quote(cell.column().name.toString()) + "," + path + ",\"" + hex(value) + "\"," + times(cell.timestamp(), cell.ttl(), cell.localDeletionTime()) + "," + cell.isTombstone() + shards + "]";
    }

    private static String shards(ByteBuffer context)
    {
        List<String> found = new ArrayList<>();
        for (CounterContext.ContextState s = CounterContext.ContextState.wrap(context); s.hasRemaining(); s.moveToNext())
        {
            String kind = s.isGlobal() ? "global" : s.isLocal() ? "local" : "remote";
            found.add("[" + quote(s.getCounterId().toString()) + "," + quote(kind) + "," + s.getClock() + "," + s.getCount() + "]");
        }
        return String.join(",", found);
    }

    private static String times(long timestamp, int ttl, long deletionTime)
    {
        return "[" + timestamp + "," + (ttl == Cell.NO_TTL ? "null" : "" + ttl) + "," + (deletionTime == Cell.NO_DELETION_TIME ? "null" : "" + deletionTime) + "]";
    }

    private static String json(DeletionTime deletion)
    {
        return deletion.isLive() ? "null" : "[" + deletion.markedForDeleteAt() + "," + deletion.localDeletionTime() + "]";
    }

    private static String quote(String text)
    {
        return "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }

    static String hex(ByteBuffer bytes)
    {
        StringBuilder text = new StringBuilder();
        for (int i = bytes.position(); i < bytes.limit(); i++)
            text.append(Character.forDigit(bytes.get(i) >> 4 & 15, 16)).append(Character.forDigit(bytes.get(i) & 15, 16));
        return text.toString();
    }

    /** Scans a file some times, looking at every cell, and prints for each pass the CPU seconds of the whole process. */
    private static void scan(String path, int passes) throws Exception
    {
        com.sun.management.OperatingSystemMXBean system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        SSTableReader sstable = open(path);
        for (int pass = 0; pass < passes; pass++)
        {
            long start = System.nanoTime();
            long cpu = system.getProcessCpuTime();
            long rows = 0;
            long sum = 0;
            try (ISSTableScanner scanner = sstable.getScanner())
            {
                while (scanner.hasNext())
                    try (UnfilteredRowIterator partition = scanner.next())
                    {
                        while (partition.hasNext())
                        {
                            Unfiltered unfiltered = partition.next();
                            rows++;
                            if (unfiltered.isRow())
                                for (Cell<?> cell : ((Row) unfiltered).cells())
                                    sum += cell.timestamp() + cell.ttl() + cell.localDeletionTime() + cell.valueSize();
                        }
                    }
            }
            out.println("{\"rows\":" + rows + ",\"sum\":" + sum + ",\"cpu\":" + (system.getProcessCpuTime() - cpu) / 1e9 + ",\"wall\":" + (System.nanoTime() - start) / 1e9 + "}");
        }
    }

    /** Writes SSTables of a table with rows of a UUID and an int as the key, 16 rows a partition, and five columns. */
    private static void write(String folder, int rows) throws Exception
    {
        java.util.Random random = new java.util.Random(1);
        try (CQLSSTableWriter writer = CQLSSTableWriter.builder().inDirectory(folder).withMaxSSTableSizeInMiB(4096).sorted()
                 .forTable("CREATE TABLE bench.events (id uuid, n int, kind text, amount bigint, price double, at timestamp, note text, PRIMARY KEY (id, n))")
                 .using("INSERT INTO bench.events (id, n, kind, amount, price, at, note) VALUES (?, ?, ?, ?, ?, ?, ?)").build())
        {
            List<UUID> ids = new ArrayList<>();
            for (int i = 0; i < rows / 16; i++)
                ids.add(new UUID(random.nextLong() & ~0xF000L | 0x4000L, random.nextLong() & 0x3FFFFFFFFFFFFFFFL | Long.MIN_VALUE));
            org.apache.cassandra.dht.Murmur3Partitioner partitioner = org.apache.cassandra.dht.Murmur3Partitioner.instance;
            ids.sort(java.util.Comparator.comparing(id -> partitioner.decorateKey(org.apache.cassandra.utils.UUIDGen.toByteBuffer(id))));
            for (UUID id : ids)
                for (int n = 0; n < 16; n++)
                    writer.addRow(id, n, "kind" + n % 5, random.nextLong() >> 20, random.nextDouble(), new java.util.Date(1700000000000L + random.nextInt()), "note " + random.nextInt(1000000));
        }
    }

    /** Arguments: a file of CREATE statements (each after a line `-- keyspace table-id` or `-- keyspace`), then segments. */
    private static void commitLog(String[] args) throws Exception
    {
        schema(Files.readString(Path.of(args[2])));
        CommitLogReader reader = new CommitLogReader();
        for (int i = 3; i < args.length; i++)
        {
            out.println("{\"file\":\"" + args[i] + "\"}");
            reader.readCommitLogSegment(new Handler(), new File(args[i]), CommitLogReader.ALL_MUTATIONS, false);
        }
    }

    /** Arguments: segments. Prints which mutations (by the offsets of their ends) the database accepts when it starts. */
    private static void commitLogEnds(String[] args) throws Exception
    {
        for (int i = 2; i < args.length; i++)
        {
            List<String> ends = new ArrayList<>();
            CommitLogReadHandler handler = new CommitLogReadHandler()
            {
                public boolean shouldSkipSegmentOnError(CommitLogReadException exception)
                {
                    return true;
                }

                public void handleUnrecoverableError(CommitLogReadException exception)
                {
                }

                public void handleMutation(Mutation mutation, int size, int entryLocation, CommitLogDescriptor descriptor)
                {
                    ends.add("" + entryLocation);
                }
            };
            try
            {
                new CommitLogReader().readCommitLogSegment(handler, new File(args[i]), CommitLogReader.ALL_MUTATIONS, true);
            }
            catch (com.github.luben.zstd.ZstdException e)
            {
                // A node that starts does not expect this of a section that was cut off, either; nothing follows it.
            }
            out.println("{\"ends\":[" + String.join(",", ends) + "]}");
        }
    }

    /** As `commitlog`, but looks at every cell without printing; four passes, with the CPU seconds of the process. */
    private static void scanCommitLog(String[] args) throws Exception
    {
        com.sun.management.OperatingSystemMXBean system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        schema(Files.readString(Path.of(args[2])));
        for (int pass = 0; pass < 4; pass++)
        {
            long[] found = new long[2];
            long start = System.nanoTime();
            long cpu = system.getProcessCpuTime();
            for (int i = 3; i < args.length; i++)
                new CommitLogReader().readCommitLogSegment(new Handler()
                {
                    public void handleMutation(Mutation mutation, int size, int entryLocation, CommitLogDescriptor descriptor)
                    {
                        if (mutation.getKeyspaceName().startsWith("system"))
                            return;
                        for (PartitionUpdate update : mutation.getPartitionUpdates())
                            for (Row row : update)
                            {
                                found[0]++;
                                for (Cell<?> cell : row.cells())
                                    found[1] += cell.timestamp() + cell.valueSize();
                            }
                    }
                }, new File(args[i]), CommitLogReader.ALL_MUTATIONS, false);
            out.println("{\"rows\":" + found[0] + ",\"cpu\":" + (system.getProcessCpuTime() - cpu) / 1e9 + ",\"wall\":" + (System.nanoTime() - start) / 1e9 + "}");
        }
    }

    private static void schema(String text)
    {
        Api.dropAllKeyspaces();
        java.util.Map<String, Types.RawBuilder> types = new java.util.HashMap<>();
        for (String statement : text.split("(?m)^-- "))
        {
            if (statement.isBlank())
                continue;
            String[] words = statement.substring(0, statement.indexOf('\n')).trim().split(" ");
            String cql = statement.substring(statement.indexOf('\n') + 1).trim();
            if (words.length == 1)
            {
                Api.addKeyspace(words[0]);
                CreateTypeStatement.Raw type = CQLFragmentParser.parseAny(CqlParser::createTypeStatement, cql, "CREATE TYPE");

                type.addToRawBuilder(types.computeIfAbsent(words[0], Types::rawBuilder));
                continue;
            }
            Types built = types.containsKey(words[0]) ? types.get(words[0]).build() : Types.none();
            Api.addKeyspace(words[0]);
            TableMetadata.Builder table = Api.table(cql + '\n', words[0], built).id(TableId.fromUUID(UUID.fromString(words[1])));
            for (String line : cql.split("\n"))
                if (line.startsWith("--dropped "))
                {
                    String[] dropped = line.split(" ", 5);
                    ColumnIdentifier name = ColumnIdentifier.getInterned(dropped[3], true);
                    ColumnMetadata.Kind kind = ColumnMetadata.Kind.valueOf(dropped[1]);
                    table.recordColumnDrop(Api.column(words[0], table.build().name, name, CQLTypeParser.parse(words[0], dropped[4], built), kind), Long.parseLong(dropped[2]));
                }
            Api.addTable(table.build());
        }
    }

    private static class Handler implements CommitLogReadHandler
    {
        public boolean shouldSkipSegmentOnError(CommitLogReadException exception)
        {
            handleUnrecoverableError(exception);
            return false;
        }

        public void handleUnrecoverableError(CommitLogReadException exception)
        {
            // The error of 6.0 for a table that is not known here, where others skip the mutation silently.
            if (!String.valueOf(exception.getMessage()).contains("CoordinatorBehindException"))
                out.println("{\"error\":" + quote(String.valueOf(exception.getMessage())) + "}");
        }

        public void handleMutation(Mutation mutation, int size, int entryLocation, CommitLogDescriptor descriptor)
        {
            for (PartitionUpdate update : mutation.getPartitionUpdates())
            {
                if (update.metadata().keyspace.startsWith("system"))
                    continue;
                out.println("{\"update\":\"" + update.metadata().id.asUUID() + "\",\"end\":" + entryLocation + "}");
                print(update.unfilteredIterator(), update.metadata().comparator);
            }
        }
    }
}
