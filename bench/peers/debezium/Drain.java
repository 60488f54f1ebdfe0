import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Debezium's embedded engine at its best: records are counted and acknowledged batch by batch, and go nowhere, or into
 * Kafka.
 *
 * <p>Arguments: FORMAT CHANGES [option=value ...]. FORMAT is `connect` (records as objects, the quickest), `json`
 * (Debezium's default, each with its schema) or `json-plain` (without). Every option is the engine's, but
 * `bench.times=FILE` writes a line `id nanoseconds` for each change when it reached the consumer, on the machine's
 * monotonic clock, `bench.close=true` closes the engine in good order, so that its files say where it came to, and
 * `bench.seconds` is the longest that a run may take (900).
 *
 * <p>Options with `bench.producer.` before them are a KafkaProducer's. With one of them, and a format of JSON, records go
 * into their topics, and count when the brokers have acknowledged them. A batch is on its way while the engine makes the
 * next one, and is acknowledged to the engine after the brokers have done so.
 *
 * <p>The clock begins with the batch after a third of the changes and ends with the last one, and only what came in
 * between counts: the JVM's start and the compiler's warm-up are Debezium's for free. Prints one line of JSON.
 */
public final class Drain {
  private static final CountDownLatch DONE = new CountDownLatch(1);
  private static long expected;
  private static long seen;
  private static long bytes;
  private static long first;
  private static long firstNs;
  private static long firstCpuMs;
  private static volatile long lastNs;
  private static volatile boolean failed;
  private static long[] ids;
  private static long[] times;

  private static long cpuMs() {
    return ProcessHandle.current().info().totalCpuDuration().orElseThrow().toMillis();
  }

  private static boolean isChange(SourceRecord record) {
    var schema = record.valueSchema();
    return schema != null && schema.name() != null && schema.name().endsWith("Envelope");
  }

  /** Called with each batch: `changes` of them are row changes. */
  private static void count(long changes) {
    if (changes == 0) {
      return;
    }
    seen += changes;
    if (first == 0 && seen >= expected / 3) {
      first = seen;
      firstNs = System.nanoTime();
      firstCpuMs = cpuMs();
    }
    if (seen >= expected) {
      lastNs = System.nanoTime();
      DONE.countDown();
    }
  }

  private static void keepTime(SourceRecord record) {
    Object after = ((Struct) record.value()).get("after");
    if (after != null && seen < ids.length) {
      ids[(int) seen] = ((Number) ((Struct) after).get("id")).longValue();
      times[(int) seen] = System.nanoTime();
    }
  }

  private static DebeziumEngine<?> asObjects(Properties options) {
    return DebeziumEngine.create(Connect.class)
        .using(options)
        .using(Drain::completed)
        .notifying(
            (records, committer) -> {
              long changes = 0;
              for (ChangeEvent<SourceRecord, SourceRecord> record : cast(records)) {
                if (isChange(record.value())) {
                  if (ids != null) {
                    keepTime(record.value());
                    count(1);
                  } else {
                    changes++;
                  }
                }
              }
              for (var record : records) {
                committer.markProcessed(record);
              }
              committer.markBatchFinished();
              count(changes);
            })
        .build();
  }

  @SuppressWarnings("unchecked")
  private static List<ChangeEvent<SourceRecord, SourceRecord>> cast(List<?> records) {
    return (List<ChangeEvent<SourceRecord, SourceRecord>>) records;
  }

  /** Records on their way to the brokers, and whom to tell when they are there. */
  private record Sent(
      List<ChangeEvent<String, String>> records,
      List<Future<RecordMetadata>> answers,
      DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) {
    void settle() throws InterruptedException {
      try {
        for (var answer : answers) {
          answer.get();
        }
      } catch (java.util.concurrent.ExecutionException error) {
        throw new IllegalStateException("a record was not acknowledged", error.getCause());
      }
      for (var record : records) {
        committer.markProcessed(record);
      }
      committer.markBatchFinished();
    }
  }

  private static DebeziumEngine<?> intoKafka(Properties options, Properties settings) {
    var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    var before = new ArrayList<Sent>();
    return DebeziumEngine.create(Json.class)
        .using(options)
        .using(Drain::completed)
        .notifying(
            (List<ChangeEvent<String, String>> records,
                DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) -> {
              var answers = new ArrayList<Future<RecordMetadata>>(records.size());
              for (var record : records) {
                var message = new ProducerRecord<>(record.destination(), record.key(), record.value());
                answers.add(producer.send(message, (at, error) -> acknowledged(at, error)));
              }
              for (var sent : before) {
                sent.settle();
              }
              before.clear();
              before.add(new Sent(records, answers, committer));
            })
        .build();
  }

  /** Called by the producer's only thread. */
  private static void acknowledged(RecordMetadata at, Exception error) {
    if (error != null) {
      completed(false, "a record was not acknowledged", error);
    } else if (at.serializedValueSize() > 0) {
      bytes += at.serializedValueSize();
      count(1);
    }
  }

  private static DebeziumEngine<?> asJson(Properties options) {
    return DebeziumEngine.create(Json.class)
        .using(options)
        .using(Drain::completed)
        .notifying(
            (List<ChangeEvent<String, String>> records,
                DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) -> {
              long changes = 0;
              for (var record : records) {
                if (record.value() != null) {
                  changes++;
                  bytes += record.value().getBytes(StandardCharsets.UTF_8).length;
                }
                committer.markProcessed(record);
              }
              committer.markBatchFinished();
              count(changes);
            })
        .build();
  }

  private static void completed(boolean success, String message, Throwable error) {
    if (!success) {
      System.err.println("the engine ended: " + message);
      if (error != null) {
        error.printStackTrace();
      }
      failed = true;
    }
    DONE.countDown();
  }

  /** Takes the options that begin with `prefix` out of the others. */
  private static Properties taken(Properties options, String prefix) {
    var found = new Properties();
    for (String name : options.stringPropertyNames()) {
      if (name.startsWith(prefix)) {
        found.setProperty(name.substring(prefix.length()), (String) options.remove(name));
      }
    }
    return found;
  }

  private static long peakBytes() throws Exception {
    for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
      if (line.startsWith("VmHWM:")) {
        return Long.parseLong(line.replaceAll("[^0-9]", "")) << 10;
      }
    }
    return 0;
  }

  public static void main(String[] arguments) throws Exception {
    String format = arguments[0];
    expected = Long.parseLong(arguments[1]);
    Properties options = new Properties();
    for (int i = 2; i < arguments.length; i++) {
      int equals = arguments[i].indexOf('=');
      options.setProperty(arguments[i].substring(0, equals), arguments[i].substring(equals + 1));
    }
    String timesFile = (String) options.remove("bench.times");
    boolean close = "true".equals(options.remove("bench.close"));
    String secondsMax = (String) options.remove("bench.seconds");
    if (timesFile != null) {
      ids = new long[(int) expected];
      times = new long[(int) expected];
    }
    if (format.equals("json-plain")) {
      options.setProperty("converter.schemas.enable", "false");
    }
    Properties producer = taken(options, "bench.producer.");
    DebeziumEngine<?> engine =
        !producer.isEmpty()
            ? intoKafka(options, producer)
            : format.equals("connect") ? asObjects(options) : asJson(options);
    long startedNs = System.nanoTime();
    Executors.newSingleThreadExecutor().execute((Runnable) engine);
    if (!DONE.await(secondsMax == null ? 900 : Long.parseLong(secondsMax), TimeUnit.SECONDS) || failed || seen < expected) {
      System.err.println("saw " + seen + " of " + expected + " changes");
      Runtime.getRuntime().halt(1);
    }
    long cpu = cpuMs();
    if (timesFile != null) {
      try (var out = new PrintWriter(timesFile)) {
        for (int i = 0; i < ids.length; i++) {
          out.println(ids[i] + " " + times[i]);
        }
      }
    }
    System.out.printf(
        "{\"seconds\": %.6f, \"rows\": %d, \"seen\": %d, \"cpu_s\": %.3f, \"rss_bytes\": %d, \"bytes\": %d, \"start_s\": %.3f}%n",
        (lastNs - firstNs) / 1e9,
        seen - first,
        seen,
        (cpu - firstCpuMs) / 1e3,
        peakBytes(),
        bytes,
        (firstNs - startedNs) / 1e9);
    System.out.flush();
    if (close) {
      engine.close();
    }
    Runtime.getRuntime().halt(0);
  }
}
