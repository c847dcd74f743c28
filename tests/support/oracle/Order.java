import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

import org.apache.cassandra.cql3.CQLFragmentParser;
import org.apache.cassandra.cql3.ColumnIdentifier;
import org.apache.cassandra.cql3.ColumnSpecification;
import org.apache.cassandra.cql3.CqlParser;
import org.apache.cassandra.cql3.QueryOptions;
import org.apache.cassandra.db.BufferClusteringBound;
import org.apache.cassandra.db.Clustering;
import org.apache.cassandra.db.ClusteringPrefix;
import org.apache.cassandra.db.marshal.AbstractType;
import org.apache.cassandra.db.marshal.ReversedType;
import org.apache.cassandra.schema.Schema;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.utils.ByteBufferUtil;
import org.apache.cassandra.utils.vint.VIntCoding;

/** Sorts clusterings and bounds by Cassandra's own comparator, and encodes variable-length integers. */
class Order
{
    /** Each line of the file: keyspace, table, kind of the prefix, and CQL literals (or `null`), with tabs between. */
    static void sort(PrintStream out, String path) throws Exception
    {
        TableMetadata table = null;
        List<ClusteringPrefix<?>> prefixes = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(path)))
        {
            String[] parts = line.split("\t", -1);
            TableMetadata next = Schema.instance.getTableMetadata(parts[0], parts[1]);
            if (table != null && next != table)
                print(out, table, prefixes);
            table = next;
            ByteBuffer[] values = new ByteBuffer[parts.length - 3];
            for (int i = 0; i < values.length; i++)
                values[i] = value(table.clusteringColumns().get(i).type, parts[i + 3]);
            ClusteringPrefix.Kind kind = ClusteringPrefix.Kind.valueOf(parts[2]);
            prefixes.add(kind == ClusteringPrefix.Kind.CLUSTERING ? Clustering.make(values) : BufferClusteringBound.create(kind, values));
        }
        print(out, table, prefixes);
    }

    /** Prints for each line (keyspace, table and two clusterings of one column) how they compare: -1, 0 or 1. */
    static void compare(PrintStream out, String path) throws Exception
    {
        for (String line : Files.readAllLines(Path.of(path)))
        {
            String[] parts = line.split("\t", -1);
            TableMetadata table = Schema.instance.getTableMetadata(parts[0], parts[1]);
            AbstractType<?> type = table.clusteringColumns().get(0).type;
            Clustering<?> one = Clustering.make(value(type, parts[2])), other = Clustering.make(value(type, parts[3]));
            out.println(Integer.signum(table.comparator.compare(one, other)));
        }
    }

    private static ByteBuffer value(AbstractType<?> type, String literal) throws Exception
    {
        if (literal.equals("null"))
            return null;
        if (literal.equals("empty"))
            return ByteBuffer.allocate(0);
        if (literal.startsWith("bytes "))
            return ByteBufferUtil.hexToBytes(literal.substring(6));
        AbstractType<?> plain = type instanceof ReversedType ? ((ReversedType<?>) type).baseType : type;
        ColumnSpecification column = new ColumnSpecification("generated", "t", new ColumnIdentifier("c", true), plain);
        return CQLFragmentParser.parseAny(CqlParser::term, literal, "a term").prepare("generated", column).bindAndGet(QueryOptions.DEFAULT);
    }

    /** Print the prefixes in order; those that compare as equal have the same rank. */
    private static void print(PrintStream out, TableMetadata table, List<ClusteringPrefix<?>> prefixes)
    {
        prefixes.sort(table.comparator);
        int rank = 0;
        for (int i = 0; i < prefixes.size(); i++)
        {
            ClusteringPrefix<?> prefix = prefixes.get(i);
            if (i > 0 && table.comparator.compare(prefixes.get(i - 1), prefix) != 0)
                rank++;
            out.println("{\"table\":\"" + table.name + "\",\"rank\":" + rank + ",\"kind\":\"" + prefix.kind() + "\",\"values\":[" + Oracle.values(prefix) + "]}");
        }
        prefixes.clear();
    }

    /** Encode numbers as unsigned vints. */
    static void vints(PrintStream out, String[] args, int first)
    {
        for (int i = first; i < args.length; i++)
        {
            long value = Long.parseLong(args[i]);
            ByteBuffer bytes = ByteBuffer.allocate(9);
            VIntCoding.writeUnsignedVInt(value, bytes);
            bytes.flip();
            out.println("{\"value\":" + value + ",\"bytes\":\"" + Oracle.hex(bytes) + "\"}");
        }
    }
}
