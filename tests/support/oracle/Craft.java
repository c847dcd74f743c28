import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;

import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.db.Clustering;
import org.apache.cassandra.db.DecoratedKey;
import org.apache.cassandra.db.DeletionTime;
import org.apache.cassandra.db.LivenessInfo;
import org.apache.cassandra.db.RangeTombstone;
import org.apache.cassandra.db.SerializationHeader;
import org.apache.cassandra.db.Slice;
import org.apache.cassandra.db.context.CounterContext;
import org.apache.cassandra.db.marshal.Int32Type;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.db.rows.BTreeRow;
import org.apache.cassandra.db.rows.BufferCell;
import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.db.rows.EncodingStats;
import org.apache.cassandra.db.rows.Row;
import org.apache.cassandra.io.sstable.Descriptor;
import org.apache.cassandra.io.sstable.SSTableTxnWriter;
import org.apache.cassandra.io.sstable.SequenceBasedSSTableId;
import org.apache.cassandra.io.sstable.format.SSTableFormat;
import org.apache.cassandra.io.util.File;
import org.apache.cassandra.schema.ColumnMetadata;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.schema.TableMetadataRef;
import org.apache.cassandra.schema.Types;
import org.apache.cassandra.utils.CounterId;
import org.apache.cassandra.utils.UUIDGen;

/** Writes SSTables by Cassandra's own writer, with what no client can ask for: counters of many nodes, any time. */
class Craft
{
    private static final String COUNTERS = "CREATE TABLE craft.counters (k int, c int, n counter, s counter static, PRIMARY KEY (k, c))";
    private static final String TIMES = "CREATE TABLE craft.times (k int, c int, v int, PRIMARY KEY (k, c))";

    /** Write into a folder for each version of the format, and in it for each table. */
    static void craft(String folder) throws Exception
    {
        for (String version : Api.FORMATS)
        {
            counters(Path.of(folder, version, "counters"), version);
            times(Path.of(folder, version, "times"), version);
        }
    }

    private static TableMetadata table(String cql) throws Exception
    {
        return Api.table(cql, "craft", Types.none()).build();
    }

    private static void write(Path folder, String version, PartitionUpdate update) throws Exception
    {
        write(folder, version, 1, Collections.singletonList(update));
    }

    private static void write(Path folder, String version, int number, Collection<PartitionUpdate> updates) throws Exception
    {
        Files.createDirectories(folder);
        TableMetadata metadata = updates.iterator().next().metadata();
        SSTableFormat<?, ?> format = DatabaseDescriptor.getSSTableFormats().get(version.equals("da") || version.equals("ea") ? "bti" : "big");
        Descriptor descriptor = new Descriptor(version, new File(folder), metadata.keyspace, metadata.name, new SequenceBasedSSTableId(number), format);
        SerializationHeader header = new SerializationHeader(true, metadata, metadata.regularAndStaticColumns(), EncodingStats.NO_STATS);
        try (SSTableTxnWriter writer = SSTableTxnWriter.create(TableMetadataRef.forOfflineTools(metadata), descriptor, 1, 0, null, false, header, Collections.emptyList(), null))
        {
            for (PartitionUpdate update : updates)
                writer.append(update.unfilteredIterator());
            writer.finish(false);
        }
    }

    private static ByteBuffer bytes(int value)
    {
        return Int32Type.instance.decompose(value);
    }

    private static void counters(Path folder, String version) throws Exception
    {
        TableMetadata table = table(COUNTERS);
        ColumnMetadata n = table.getColumn(ByteBuffer.wrap("n".getBytes()));
        ColumnMetadata s = table.getColumn(ByteBuffer.wrap("s".getBytes()));
        PartitionUpdate.Builder update = new PartitionUpdate.Builder(table, bytes(1), table.regularAndStaticColumns(), 1);
        int[][] shards = { { 1, 0, 0 }, { 0, 1, 0 }, { 0, 0, 1 }, { 3, 0, 0 }, { 2, 1, 2 }, { 0, 1, 5 }, { 40, 1, 1 }, { 0, 0, 0 } };
        for (int c = 0; c < shards.length; c++)
        {
            Row.Builder row = BTreeRow.unsortedBuilder();
            row.newRow(Clustering.make(bytes(c)));
            row.addCell(new BufferCell(n, 1000 + c, Cell.NO_TTL, Cell.NO_DELETION_TIME, context(shards[c]), null));
            update.add(row.build());
        }
        Row.Builder row = BTreeRow.unsortedBuilder();
        row.newRow(Clustering.STATIC_CLUSTERING);
        row.addCell(new BufferCell(s, 5, Cell.NO_TTL, Cell.NO_DELETION_TIME, context(new int[]{ 2, 0, 3 }), null));
        update.add(row.build());
        write(folder, version, update.build());
    }

    /**
     * Write SSTables of counters by lines of: the file's number, k, what, write time, and after it what this needs.
     *
     *   cell COLUMN C SHARDS    shards as id:kind:clock:count, separated by commas, in the order of their ids; C is - of a static
     *   dead COLUMN C
     *   row C
     *   range FIRST LAST        both included
     *   partition
     *
     * Deletion times are those of now, as the server forgets old ones.
     */
    static void counters(String folder, List<String> lines) throws Exception
    {
        TableMetadata table = table(COUNTERS);
        long now = System.currentTimeMillis() / 1000;
        Map<Integer, TreeMap<DecoratedKey, PartitionUpdate.Builder>> files = new HashMap<>();
        for (String line : lines)
        {
            String[] parts = line.split(" ");
            DecoratedKey key = table.partitioner.decorateKey(bytes(Integer.parseInt(parts[1])));
            PartitionUpdate.Builder update = files.computeIfAbsent(Integer.parseInt(parts[0]), number -> new TreeMap<>())
                .computeIfAbsent(key, k -> new PartitionUpdate.Builder(table, k, table.regularAndStaticColumns(), 1));
            long at = Long.parseLong(parts[3]);
            DeletionTime deletion = DeletionTime.build(at, now);
            if (parts[2].equals("partition"))
                update.addPartitionDeletion(deletion);
            else if (parts[2].equals("range"))
                update.add(new RangeTombstone(Slice.make(clustering(parts[4]), clustering(parts[5])), deletion));
            else
            {
                Row.Builder row = BTreeRow.unsortedBuilder();
                row.newRow(clustering(parts[parts[2].equals("row") ? 4 : 5]));
                if (parts[2].equals("row"))
                    row.addRowDeletion(Row.Deletion.regular(deletion));
                else
                {
                    ColumnMetadata column = table.getColumn(ByteBuffer.wrap(parts[4].getBytes()));
                    row.addCell(parts[2].equals("dead") ? BufferCell.tombstone(column, at, now) : new BufferCell(column, at, Cell.NO_TTL, Cell.NO_DELETION_TIME, context(parts[6].split(",")), null));
                }
                update.add(row.build());
            }
        }
        for (Map.Entry<Integer, TreeMap<DecoratedKey, PartitionUpdate.Builder>> file : files.entrySet())
        {
            List<PartitionUpdate> updates = new ArrayList<>();
            for (PartitionUpdate.Builder builder : file.getValue().values())
                updates.add(builder.build());
            write(Path.of(folder), "nb", file.getKey(), updates);
        }
    }

    private static Clustering<?> clustering(String text)
    {
        return text.equals("-") ? Clustering.STATIC_CLUSTERING : Clustering.make(bytes(Integer.parseInt(text)));
    }

    private static ByteBuffer context(String[] shards)
    {
        int global = 0;
        for (String shard : shards)
            global += shard.contains(":global:") ? 1 : 0;
        CounterContext.ContextState state = CounterContext.ContextState.allocate(global, 0, shards.length - global);
        for (String shard : shards)
        {
            String[] parts = shard.split(":");
            CounterId id = CounterId.wrap(ByteBuffer.wrap(UUIDGen.decompose(UUID.fromString(parts[0]))), 0);
            long clock = Long.parseLong(parts[2]), count = Long.parseLong(parts[3]);
            if (parts[1].equals("global"))
                state.writeGlobal(id, clock, count);
            else
                state.writeRemote(id, clock, count);
        }
        return state.context;
    }

    /** Shards of different nodes, in the order of their ids; counts go to both ends of their range. */
    private static ByteBuffer context(int[] counts)
    {
        CounterContext.ContextState state = CounterContext.ContextState.allocate(counts[0], counts[1], counts[2]);
        long[] values = { 5, -7, Long.MAX_VALUE, Long.MIN_VALUE, 1L << 40, 0 };
        for (int i = 0; i < counts[0] + counts[1] + counts[2]; i++)
        {
            CounterId id = CounterId.fromInt(i + 1);
            if (i < counts[0])
                state.writeGlobal(id, i + 1, values[i % values.length]);
            else if (i < counts[0] + counts[1])
                state.writeLocal(id, i + 1, values[i % values.length]);
            else
                state.writeRemote(id, i + 1, values[i % values.length]);
        }
        return state.context;
    }

    private static void times(Path folder, String version) throws Exception
    {
        TableMetadata table = table(TIMES);
        ColumnMetadata v = table.getColumn(ByteBuffer.wrap("v".getBytes()));
        PartitionUpdate.Builder update = new PartitionUpdate.Builder(table, bytes(1), table.regularAndStaticColumns(), 1);
        long latest = version.equals("nb") ? Cell.MAX_DELETION_TIME_2038_LEGACY_CAP : Cell.MAX_DELETION_TIME;
        long epoch = EncodingStats.NO_STATS.minTimestamp;
        int c = 0;
        for (long deletionTime : new long[]{ 0, 1, EncodingStats.NO_STATS.minLocalDeletionTime - 1, EncodingStats.NO_STATS.minLocalDeletionTime, (1L << 31) - 2, (1L << 31) - 1, 1L << 31, (1L << 31) + 1, (1L << 32) - 4, (1L << 32) - 3 })
        {
            if (deletionTime > latest)
                continue;
            for (int ttl : new int[]{ 1, 127, 128, 630720000 })
            {
                // What expires before it was written, the database takes for corrupt.
                if (deletionTime < ttl)
                    continue;
                Row.Builder row = row(c);
                row.addPrimaryKeyLivenessInfo(LivenessInfo.withExpirationTime(epoch, ttl, deletionTime));
                row.addCell(new BufferCell(v, epoch, ttl, deletionTime, bytes(c++), null));
                update.add(row.build());
            }
            // A deletion (not an expiry) more than 2^31 s after the smallest, Cassandra 5.0.9 writes so that it cannot read it.
            if (deletionTime - EncodingStats.NO_STATS.minLocalDeletionTime >= 1L << 31)
                continue;
            Row.Builder row = row(c);
            row.addRowDeletion(Row.Deletion.regular(DeletionTime.build(epoch, deletionTime)));
            row.addCell(BufferCell.tombstone(v, epoch + 1, deletionTime));
            update.add(row.build());
            c++;
            Slice slice = Slice.make(Clustering.make(bytes(1000 + c)), Clustering.make(bytes(1000 + c)));
            update.add(new RangeTombstone(slice, DeletionTime.build(epoch, deletionTime)));
        }
        // What is written is the difference to the epoch, as an unsigned vint: each of its lengths, and what wraps around.
        for (int bits = 0; bits < 64; bits += 7)
            for (long delta : new long[]{ (1L << bits) - 1, 1L << bits, -(1L << bits) })
            {
                Row.Builder row = row(c);
                row.addPrimaryKeyLivenessInfo(Api.marker(epoch + delta));
                row.addCell(BufferCell.live(v, delta - 1, bytes(c++)));
                update.add(row.build());
            }
        for (long time : new long[]{ Long.MIN_VALUE + 1, -1, 0, Long.MAX_VALUE })
        {
            Row.Builder row = row(c);
            row.addCell(BufferCell.live(v, time, bytes(c++)));
            update.add(row.build());
        }
        write(folder, version, update.build());
    }

    private static Row.Builder row(int c)
    {
        Row.Builder row = BTreeRow.unsortedBuilder();
        row.newRow(Clustering.make(bytes(c)));
        return row;
    }
}
