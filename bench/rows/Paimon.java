import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.options.Options;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.reader.RecordReaderIterator;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.table.Table;
import org.apache.paimon.table.sink.StreamTableCommit;
import org.apache.paimon.table.sink.StreamTableWrite;
import org.apache.paimon.table.sink.StreamWriteBuilder;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.table.source.StreamTableScan;
import org.apache.paimon.table.source.TableScan;
import org.apache.paimon.types.DataTypes;
import org.apache.paimon.types.RowKind;

/**
 * One long-lived writer, and one long-lived reader of the changelog, of a Paimon table.
 *
 * Arguments: a folder, and 'wide' for a table with a second key column. Each line of the input is a command, answered by
 * a line: `write FILE` writes and commits rows (their first field is 1 if the row is deleted), `events` reads the
 * changelog since the last time, `dump FILE` writes what was read, and `rows FILE` writes all rows. Files are CSV.
 */
public final class Paimon
{
    public static void main(String[] args) throws Exception
    {
        // The answers alone go to the standard output.
        PrintStream out = System.out;
        System.setOut(System.err);
        boolean wide = args[1].equals("wide");
        Table table = create(args[0], wide);
        IOManager disk = IOManager.create(args[0] + "/scratch");
        StreamWriteBuilder builder = table.newStreamWriteBuilder();
        StreamTableWrite write = (StreamTableWrite) builder.newWrite().withIOManager(disk);
        StreamTableCommit commit = builder.newCommit();
        ReadBuilder reading = table.copy(Map.of("scan.mode", "from-snapshot", "scan.snapshot-id", "1")).newReadBuilder();
        StreamTableScan scan = reading.newStreamScan();
        List<Object[]> events = new ArrayList<>();
        long number = 0;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine())
        {
            String[] command = line.split(" ");
            switch (command[0])
            {
                case "write":
                    try (BufferedReader rows = new BufferedReader(new FileReader(command[1])))
                    {
                        for (String row = rows.readLine(); row != null; row = rows.readLine())
                            write.write(parse(row, wide));
                    }
                    commit.commit(number, write.prepareCommit(true, number));
                    number++;
                    break;
                case "events":
                    events.clear();
                    // The first plan only finds where to begin.
                    long newest = table.latestSnapshot().get().id();
                    do
                        read(reading, scan.plan(), disk, wide, events, null);
                    while (scan.checkpoint() <= newest);
                    break;
                case "dump":
                    try (PrintStream target = new PrintStream(command[1]))
                    {
                        for (Object[] event : events)
                            print(event, target);
                    }
                    break;
                case "rows":
                    try (PrintStream target = new PrintStream(new java.io.BufferedOutputStream(new java.io.FileOutputStream(command[1]), 1 << 16)))
                    {
                        ReadBuilder all = table.newReadBuilder();
                        read(all, all.newScan().plan(), disk, wide, null, target);
                    }
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
            out.println("done");
            out.flush();
        }
        write.close();
        commit.close();
    }

    private static Table create(String folder, boolean wide) throws Exception
    {
        Options options = new Options();
        options.set("warehouse", folder + "/warehouse");
        Catalog catalog = CatalogFactory.createCatalog(CatalogContext.create(options));
        catalog.createDatabase("bench", true);
        Schema.Builder schema = Schema.newBuilder().column("id", DataTypes.BIGINT().notNull());
        if (wide)
            schema.column("n", DataTypes.INT().notNull());
        schema.column("a", DataTypes.INT()).column("b", DataTypes.BIGINT()).column("c", DataTypes.DOUBLE())
            .column("d", DataTypes.STRING()).column("e", DataTypes.STRING());
        schema.primaryKey(wide ? List.of("id", "n") : List.of("id"));
        schema.option("bucket", "4").option("changelog-producer", "lookup").option("deletion-vectors.enabled", "true");
        Identifier name = Identifier.create("bench", "rows");
        catalog.createTable(name, schema.build(), false);
        return catalog.getTable(name);
    }

    private static GenericRow parse(String line, boolean wide)
    {
        String[] fields = line.split(",", -1);
        int values = wide ? 3 : 2;
        GenericRow row = new GenericRow(fields[0].equals("1") ? RowKind.DELETE : RowKind.INSERT, fields.length - 1);
        row.setField(0, Long.parseLong(fields[1]));
        if (wide)
            row.setField(1, Integer.parseInt(fields[2]));
        if (fields[values].isEmpty())
            return row;
        row.setField(values - 1, Integer.parseInt(fields[values]));
        row.setField(values, Long.parseLong(fields[values + 1]));
        row.setField(values + 1, Double.parseDouble(fields[values + 2]));
        row.setField(values + 2, BinaryString.fromString(fields[values + 3]));
        row.setField(values + 3, BinaryString.fromString(fields[values + 4]));
        return row;
    }

    private static void read(ReadBuilder reading, TableScan.Plan plan, IOManager disk, boolean wide, List<Object[]> kept, PrintStream target) throws Exception
    {
        RecordReader<InternalRow> reader = reading.newRead().withIOManager(disk).createReader(plan);
        try (RecordReaderIterator<InternalRow> rows = new RecordReaderIterator<>(reader))
        {
            while (rows.hasNext())
            {
                Object[] row = fields(rows.next(), wide);
                if (kept != null)
                    kept.add(row);
                else
                    print(row, target);
            }
        }
    }

    private static Object[] fields(InternalRow row, boolean wide)
    {
        int v = wide ? 2 : 1;
        RowKind kind = row.getRowKind();
        Object[] fields = new Object[v + 6];
        fields[0] = kind == RowKind.INSERT || kind == RowKind.UPDATE_AFTER ? "after" : "before";
        fields[1] = row.getLong(0);
        if (wide)
            fields[2] = row.getInt(1);
        fields[v + 1] = row.getInt(v);
        fields[v + 2] = row.getLong(v + 1);
        fields[v + 3] = row.getDouble(v + 2);
        fields[v + 4] = row.getString(v + 3).toString();
        fields[v + 5] = row.getString(v + 4).toString();
        return fields;
    }

    private static void print(Object[] row, PrintStream target)
    {
        StringBuilder line = new StringBuilder();
        for (int i = 0; i < row.length; i++)
            line.append(i == 0 ? "" : ",").append(row[i]);
        target.print(line.append('\n'));
    }
}
