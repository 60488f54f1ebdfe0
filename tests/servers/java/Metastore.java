import java.net.InetSocketAddress;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.IHMSHandler;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/** Hive's metastore as its own command runs it, but on loopback alone. Settings come as system properties.
 * Arguments: the port; of a new database also "new": then the tables of locks are made, which Iceberg's commits take. */
public class Metastore {
    public static void main(String[] arguments) throws Exception {
        HiveConf conf = new HiveConf();
        if (arguments.length > 1) {
            TxnDbUtil.prepDb(conf);
        }
        IHMSHandler handler =
                HiveMetaStore.newRetryingHMSHandler(new HiveMetaStore.HMSHandler("metastore", conf, false), conf, true);
        TServerSocket socket = new TServerSocket(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])));
        new TThreadPoolServer(new TThreadPoolServer.Args(socket).processor(new TSetIpAddressProcessor<>(handler))).serve();
    }
}
