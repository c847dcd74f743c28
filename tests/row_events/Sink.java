import io.debezium.connector.jdbc.JdbcSinkConnectorTask;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTaskContext;

/**
 * Gives the messages of a topic to Debezium's JDBC sink, as Kafka Connect does.
 *
 * Arguments: a file of messages, the URL of the database, its user, and the table. A message is a line of three words:
 * the partition, and key and value in base64 (`-`: none).
 */
public final class Sink
{
    private static final String TOPIC = "row_events";
    private static final int AT_ONCE = 500;

    public static void main(String[] args) throws Exception
    {
        JsonConverter converter = new JsonConverter();
        List<SinkRecord> records = new ArrayList<>();
        JdbcSinkConnectorTask task = new JdbcSinkConnectorTask();
        // The task asks it for nothing that it cannot do without.
        task.initialize((SinkTaskContext) Proxy.newProxyInstance(
            Sink.class.getClassLoader(), new Class<?>[]{SinkTaskContext.class}, (proxy, method, arguments) -> null));
        task.start(Map.of(
            "connection.url", args[1],
            "connection.username", args[2],
            "connection.password", "none",
            "collection.name.format", args[3],
            "insert.mode", "upsert",
            "delete.enabled", "true",
            "primary.key.mode", "record_key",
            "schema.evolution", "basic"));
        converter.configure(Map.of("schemas.enable", true), false);
        long offset = 0;
        for (String line : Files.readAllLines(Paths.get(args[0])))
        {
            String[] words = line.split(" ");
            SchemaAndValue key = converter.toConnectData(TOPIC, bytes(words[1]));
            SchemaAndValue value = converter.toConnectData(TOPIC, bytes(words[2]));
            records.add(new SinkRecord(
                TOPIC, Integer.parseInt(words[0]), key.schema(), key.value(), value.schema(), value.value(), offset,
                offset, TimestampType.CREATE_TIME));
            offset++;
            if (records.size() == AT_ONCE)
            {
                task.put(records);
                records.clear();
            }
        }
        task.put(records);
        task.stop();
    }

    private static byte[] bytes(String word)
    {
        return word.equals("-") ? null : Base64.getDecoder().decode(word);
    }
}
