import io.debezium.transforms.ExtractNewRecordState;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;

/**
 * Reads messages as a sink connector does: Connect's JSON converter, then Debezium's ExtractNewRecordState.
 *
 * <p>Standard input: `topic TAB key TAB value`, JSON with schemas. Standard output: a line a message. Arguments: options
 * of the transform.
 */
public class Unwrap {
    public static void main(String[] arguments) throws Exception {
        JsonConverter keys = new JsonConverter();
        keys.configure(Map.of("schemas.enable", "true"), true);
        JsonConverter values = new JsonConverter();
        values.configure(Map.of("schemas.enable", "true"), false);
        JsonConverter plain = new JsonConverter();
        plain.configure(Map.of("schemas.enable", "false"), false);
        ExtractNewRecordState<SinkRecord> transform = new ExtractNewRecordState<>();
        Map<String, String> options = new HashMap<>();
        for (String argument : arguments) {
            int middle = argument.indexOf('=');
            options.put(argument.substring(0, middle), argument.substring(middle + 1));
        }
        transform.configure(options);
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null;) {
            String[] parts = line.split("\t");
            SchemaAndValue key = keys.toConnectData(parts[0], bytes(parts[1]));
            SchemaAndValue value = values.toConnectData(parts[0], bytes(parts[2]));
            SinkRecord record =
                new SinkRecord(parts[0], 0, key.schema(), key.value(), value.schema(), value.value(), 0);
            SinkRecord found = transform.apply(record);
            if (found == null) {
                out.println("dropped");
            } else if (found.value() == null) {
                out.println("null");
            } else {
                byte[] said = plain.fromConnectData(found.topic(), found.valueSchema(), found.value());
                out.println(new String(said, StandardCharsets.UTF_8));
            }
        }
    }

    private static byte[] bytes(String text) {
        return text.equals("null") ? null : text.getBytes(StandardCharsets.UTF_8);
    }
}
