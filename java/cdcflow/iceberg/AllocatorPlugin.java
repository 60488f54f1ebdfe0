package cdcflow.iceberg;

import java.util.Map;
import org.apache.iceberg.arrow.ArrowAllocation;
import org.apache.iceberg.shaded.org.apache.arrow.memory.BufferAllocator;
import org.apache.spark.TaskFailedReason;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.plugin.SparkPlugin;

/**
 * Closes what Iceberg's vectorized reader leaves open (iceberg#13937).
 *
 * <p>For each file that it reads it makes an allocator of Arrow memory below one that lives as long as the process, and
 * never closes it: half a kilobyte of heap for each file, for ever. While no task runs in a process nobody uses any of
 * them, so those that hold no memory are closed then.
 */
public final class AllocatorPlugin implements SparkPlugin {
    @Override
    public DriverPlugin driverPlugin() {
        return null;
    }

    @Override
    public ExecutorPlugin executorPlugin() {
        return new Sweeper();
    }

    /** Counts the tasks of its process. A task that begins waits for a sweep, so none makes an allocator meanwhile. */
    private static final class Sweeper implements ExecutorPlugin {
        private int running;

        @Override
        public void init(PluginContext context, Map<String, String> settings) {}

        @Override
        public synchronized void onTaskStart() {
            running++;
        }

        @Override
        public void onTaskSucceeded() {
            ended();
        }

        @Override
        public void onTaskFailed(TaskFailedReason reason) {
            ended();
        }

        private synchronized void ended() {
            running--;
            if (running == 0) {
                for (BufferAllocator left : ArrowAllocation.rootAllocator().getChildAllocators()) {
                    if (left.getAllocatedMemory() == 0) {
                        left.close();
                    }
                }
            }
        }
    }
}
