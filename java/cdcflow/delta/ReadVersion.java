package cdcflow.delta;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * Refuses a commit that was worked out from another version of its table than its session says.
 *
 * <p>A merge looks at a table, works out what is to be done, and has Delta do it. Delta takes the newest version at that
 * moment for its own beginning: what another driver has committed between the look and the statement is no conflict to
 * it. A session that sets {@link #EXPECTED} (-1: there is no table) has it made one.
 */
final class ReadVersion {
    static final String EXPECTED = "cdcflow.delta.read-version";

    // Within a text that a user gave the quotation mark is escaped.
    private static final Pattern READ = Pattern.compile("(?<!\\\\)\"readVersion\":(\\d+)");

    private static final Pattern COMMIT = Pattern.compile("\\d{20}\\.json");

    private ReadVersion() {}

    /** The same actions, if they may be committed. */
    static Iterator<String> checked(Path path, Iterator<String> actions, Configuration configuration)
            throws IOException {
        String expected = configuration.get(EXPECTED);
        if (expected == null || !COMMIT.matcher(path.getName()).matches()) {
            return actions;
        }
        List<String> lines = new ArrayList<>();
        actions.forEachRemaining(lines::add);
        long read = -1;
        for (String line : lines) {
            Matcher found = READ.matcher(line);
            if (line.startsWith("{\"commitInfo\"") && found.find()) {
                read = Long.parseLong(found.group(1));
            }
        }
        if (read != Long.parseLong(expected)) {
            throw new IOException(
                    "CDCFLOW_TABLE_CHANGED: the commit was worked out from version " + expected
                            + ", and somebody else has committed version " + read);
        }
        return lines.iterator();
    }
}
