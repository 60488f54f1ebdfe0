package cdcflow.delta;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's commits in an S3-compatible store, for any number of drivers: the file of a version is put only if there is
 * none (If-None-Match), so that of two who commit the same version one is told so. {@link ReadVersion} says what else
 * a commit must be.
 *
 * <p>Delta's own store for s3a looks first and writes then, which only one driver may do. This one needs a store with
 * conditional writes: {@link #isSafe} asks one whether it has them.
 */
public class ConditionalLogStore extends HadoopFileSystemLogStore {
    private static final String CREATE = "fs.option.create.conditional.overwrite";
    private static final int TRIES = 5;

    public ConditionalLogStore(Configuration configuration) {
        super(configuration);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
            throws IOException {
        byte[] content = joined(ReadVersion.checked(path, actions, configuration));
        FileSystem files = path.getFileSystem(configuration);
        if (overwrite) {
            try (FSDataOutputStream out = files.create(path, true)) {
                out.write(content);
            }
            return;
        }
        for (int tried = 1; ; tried++) {
            try {
                create(files, path, content);
                return;
            } catch (IOException error) {
                byte[] there = content(files, path);
                if (there != null && Arrays.equals(there, content)) {
                    return; // put by this very call: its answer was lost, and it was sent again
                }
                if (there != null) {
                    FileAlreadyExistsException taken = new FileAlreadyExistsException(path.toString());
                    taken.initCause(error);
                    throw taken;
                }
                if (tried == TRIES) { // a store may ask to try again while another's write is on its way
                    throw error;
                }
            }
        }
    }

    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
        return false;
    }

    /** Whether the store that has this folder refuses to put an object where one is. Writes one there, for a moment. */
    public static boolean isSafe(String folder, Configuration configuration) throws IOException {
        Path path = new Path(folder, "_cdcflow_probe_" + UUID.randomUUID());
        FileSystem files = path.getFileSystem(configuration);
        create(files, path, new byte[] {1});
        try {
            create(files, path, new byte[] {2});
            return false;
        } catch (IOException refused) {
            return Arrays.equals(content(files, path), new byte[] {1});
        } finally {
            files.delete(path, false);
        }
    }

    private static void create(FileSystem files, Path path, byte[] content) throws IOException {
        FSDataOutputStreamBuilder<?, ?> builder = files.createFile(path);
        builder.recursive();
        builder.must(CREATE, true);
        try (FSDataOutputStream out = builder.build()) {
            out.write(content);
        }
    }

    private static byte[] content(FileSystem files, Path path) throws IOException {
        try (FSDataInputStream in = files.open(path)) {
            return in.readAllBytes();
        } catch (FileNotFoundException missing) {
            return null;
        }
    }

    private static byte[] joined(Iterator<String> lines) {
        ByteArrayOutputStream found = new ByteArrayOutputStream();
        while (lines.hasNext()) {
            found.writeBytes(lines.next().getBytes(StandardCharsets.UTF_8));
            found.write('\n');
        }
        return found.toByteArray();
    }
}
