package cdcflow.delta;

import io.delta.storage.AzureLogStore;
import io.delta.storage.CloseableIterator;
import io.delta.storage.GCSLogStore;
import io.delta.storage.HDFSLogStore;
import io.delta.storage.LocalLogStore;
import io.delta.storage.LogStore;
import java.io.IOException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/**
 * Delta's own log store of a place, for places where it lets one driver commit a version. {@link ReadVersion} says what
 * else a commit must be.
 */
public class CheckedLogStore extends LogStore {
    public CheckedLogStore(Configuration configuration) {
        super(configuration);
    }

    @Override
    public CloseableIterator<String> read(Path path, Configuration configuration) throws IOException {
        return own(path).read(path, configuration);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
            throws IOException {
        own(path).write(path, ReadVersion.checked(path, actions, configuration), overwrite, configuration);
    }

    @Override
    public Iterator<FileStatus> listFrom(Path path, Configuration configuration) throws IOException {
        return own(path).listFrom(path, configuration);
    }

    @Override
    public Path resolvePathOnPhysicalStorage(Path path, Configuration configuration) throws IOException {
        return own(path).resolvePathOnPhysicalStorage(path, configuration);
    }

    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration configuration) throws IOException {
        return own(path).isPartialWriteVisible(path, configuration);
    }

    private LogStore own(Path path) throws IOException {
        String scheme = path.getFileSystem(initHadoopConf()).getScheme();
        switch (scheme) {
            case "file":
                return new LocalLogStore(initHadoopConf());
            case "gs":
                return new GCSLogStore(initHadoopConf());
            case "abfs", "abfss", "adl", "wasb", "wasbs":
                return new AzureLogStore(initHadoopConf());
            default:
                return new HDFSLogStore(initHadoopConf());
        }
    }
}
