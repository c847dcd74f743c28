import io.debezium.data.Envelope;
import io.debezium.transforms.ExtractNewRecordState;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;

/**
 * Reads messages as a sink of Kafka Connect does: by Connect's JSON converter, then by Debezium's transformation.
 *
 * Arguments: a file of messages, a file for the results, and the transformation's `add.fields`. A message is a line of
 * three words: whether it has schemas, and key and value in base64 (`-`: none). A result is a line of JSON: key, value,
 * what the transformation makes of it, and, of a value with a schema, the envelope that Debezium makes of its parts.
 */
public final class Connect
{
    private static final Map<Boolean, JsonConverter> READERS = Map.of(true, converter(true), false, converter(false));
    private static final JsonConverter WRITER = converter(false);

    public static void main(String[] args) throws Exception
    {
        ExtractNewRecordState<SinkRecord> unwrap = new ExtractNewRecordState<>();
        unwrap.configure(Map.of("delete.tombstone.handling.mode", "rewrite", "add.fields", args[2]));
        List<String> found = new ArrayList<>();
        for (String line : Files.readAllLines(Paths.get(args[0])))
        {
            String[] words = line.split(" ");
            JsonConverter reader = READERS.get(Boolean.valueOf(words[0]));
            SchemaAndValue key = reader.toConnectData("t", bytes(words[1]));
            SchemaAndValue value = reader.toConnectData("t", bytes(words[2]));
            List<String> parts = new ArrayList<>();
            parts.add("\"key\":" + json(key.schema(), key.value()));
            parts.add("\"value\":" + json(value.schema(), value.value()));
            Schema schema = value.schema();
            if (schema != null && schema.name().endsWith(".Envelope"))
            {
                SinkRecord record = new SinkRecord("t", 0, key.schema(), key.value(), schema, value.value(), 0);
                SinkRecord unwrapped = unwrap.apply(record);
                parts.add("\"unwrapped\":" + json(unwrapped.valueSchema(), unwrapped.value()));
                Schema theirs = Envelope.defineSchema()
                    .withName(schema.name())
                    .withRecord(schema.field("after").schema())
                    .withSource(schema.field("source").schema())
                    .build().schema();
                parts.add("\"debezium\":" + WRITER.asJsonSchema(theirs));
            }
            found.add("{" + String.join(",", parts) + "}");
        }
        Files.write(Paths.get(args[1]), found);
    }

    private static byte[] bytes(String word)
    {
        return word.equals("-") ? null : Base64.getDecoder().decode(word);
    }

    private static String json(Schema schema, Object value)
    {
        byte[] data = WRITER.fromConnectData("t", schema, value);
        return data == null ? "null" : new String(data, StandardCharsets.UTF_8);
    }

    private static JsonConverter converter(boolean schemas)
    {
        JsonConverter made = new JsonConverter();
        Map<String, Object> configuration = new HashMap<>();
        configuration.put("schemas.enable", schemas);
        made.configure(configuration, false);
        return made;
    }
}
