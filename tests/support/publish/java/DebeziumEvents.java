import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.PrintStream;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * What Debezium itself says of a database's changes: one line an event, `topic TAB key TAB value`, JSON with schemas.
 *
 * <p>Arguments: a file of Debezium's options, and the topic whose first event is the last one wanted.
 */
public class DebeziumEvents {
    public static void main(String[] arguments) throws Exception {
        Properties options = new Properties();
        try (Reader file = Files.newBufferedReader(Path.of(arguments[0]))) {
            options.load(file);
        }
        AtomicBoolean whole = new AtomicBoolean();
        CountDownLatch done = new CountDownLatch(1);
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(options)
            .using((success, message, error) -> {
                System.err.println(message);
                if (error != null) {
                    error.printStackTrace();
                }
                done.countDown();
            })
            .notifying(event -> {
                if (event.destination().equals(arguments[1])) {
                    whole.set(true);
                    done.countDown();
                } else if (!whole.get()) {
                    out.println(event.destination() + "\t" + event.key() + "\t" + event.value());
                }
            })
            .build();
        Executors.newSingleThreadExecutor().execute(engine);
        done.await(180, TimeUnit.SECONDS);
        out.flush();
        // The engine's own way to stop waits for more than anybody needs here.
        Runtime.getRuntime().halt(whole.get() ? 0 : 1);
    }
}
