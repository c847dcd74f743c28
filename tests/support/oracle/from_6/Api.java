import java.io.OutputStream;

import org.apache.cassandra.cql3.CQLFragmentParser;
import org.apache.cassandra.cql3.ColumnIdentifier;
import org.apache.cassandra.cql3.CqlParser;
import org.apache.cassandra.db.LivenessInfo;
import org.apache.cassandra.db.marshal.AbstractType;
import org.apache.cassandra.io.sstable.ISSTableScanner;
import org.apache.cassandra.schema.ColumnMetadata;
import org.apache.cassandra.schema.KeyspaceMetadata;
import org.apache.cassandra.schema.KeyspaceParams;
import org.apache.cassandra.schema.Keyspaces;
import org.apache.cassandra.schema.Schema;
import org.apache.cassandra.schema.SchemaTransformation;
import org.apache.cassandra.schema.SchemaTransformations;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.schema.Types;
import org.apache.cassandra.schema.UserFunctions;
import org.apache.cassandra.tcm.ClusterMetadata;
import org.apache.cassandra.tcm.ClusterMetadataService;
import org.apache.cassandra.tools.JsonTransformer;
import org.apache.cassandra.tools.Util;

/** The calls of Cassandra's classes that another version has by other names: those of 6.0. */
class Api
{
    static final String[] FORMATS = { "nb", "oa", "da", "pa", "ea" };

    /** The schemas belong to the metadata of a cluster, which is only in memory here. */
    static void initialize()
    {
        ClusterMetadataService.initializeForClients();
    }

    static void dropAllKeyspaces()
    {
        Schema.instance.submit(new SchemaTransformation()
        {
            public Keyspaces apply(ClusterMetadata metadata)
            {
                return Keyspaces.none();
            }

            public boolean compatibleWith(ClusterMetadata metadata)
            {
                return true;
            }
        });
    }

    static void addKeyspace(String name)
    {
        Schema.instance.submit(SchemaTransformations.addKeyspace(KeyspaceMetadata.create(name, KeyspaceParams.simple(1)), true));
    }

    static void addTable(TableMetadata table)
    {
        Schema.instance.submit(SchemaTransformations.addTable(table, true));
    }

    static TableMetadata.Builder table(String cql, String keyspace, Types types)
    {
        return CQLFragmentParser.parseAny(CqlParser::createTableStatement, cql, "CREATE TABLE").keyspace(keyspace).prepare(null).builder(types, UserFunctions.none());
    }

    static ColumnMetadata column(String keyspace, String table, ColumnIdentifier name, AbstractType<?> type, ColumnMetadata.Kind kind)
    {
        return new ColumnMetadata(keyspace, table, name, type, ColumnMetadata.NO_UNIQUE_ID, ColumnMetadata.NO_POSITION, kind, null);
    }

    static LivenessInfo marker(long writeTime)
    {
        return LivenessInfo.create(writeTime);
    }

    static void dump(ISSTableScanner scanner, TableMetadata table, OutputStream out) throws Exception
    {
        JsonTransformer.toJson(scanner, Util.iterToStream(scanner), true, false, table, System.currentTimeMillis() / 1000, out);
    }
}
