import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.io.PrintStream;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * What Debezium itself says of a database's changes: one line an event, `topic TAB key TAB value`, as JSON with schemas.
 *
 * <p>Arguments: a file of Debezium's options, and the number of events after which to end.
 */
public class DebeziumEvents {
    public static void main(String[] arguments) throws Exception {
        Properties options = new Properties();
        try (Reader file = Files.newBufferedReader(Path.of(arguments[0]))) {
            options.load(file);
        }
        long expected = Long.parseLong(arguments[1]);
        AtomicLong seen = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(options)
            .using((success, message, error) -> {
                if (!success) {
                    System.err.println(message);
                    if (error != null) {
                        error.printStackTrace();
                    }
                }
                done.countDown();
            })
            .notifying(event -> {
                out.println(event.destination() + "\t" + event.key() + "\t" + event.value());
                if (seen.incrementAndGet() >= expected) {
                    done.countDown();
                }
            })
            .build();
        Executors.newSingleThreadExecutor().execute(engine);
        done.await(120, TimeUnit.SECONDS);
        Runtime.getRuntime().halt(seen.get() >= expected ? 0 : 1);
    }
}
