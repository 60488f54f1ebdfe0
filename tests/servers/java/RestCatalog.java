import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.sparkproject.jetty.server.Server;
import org.sparkproject.jetty.servlet.ServletContextHandler;
import org.sparkproject.jetty.servlet.ServletHolder;

/** Iceberg's own REST catalog, by which Iceberg tests its client, before a JDBC catalog on SQLite: port, database, warehouse. */
public class RestCatalog {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> backend =
                Map.of("type", "jdbc", "uri", "jdbc:sqlite:" + arguments[1], "warehouse", arguments[2],
                        "jdbc.schema-version", "V1", "clients", "1");
        Catalog catalog = CatalogUtil.buildIcebergCatalog("backend", backend, new Configuration());
        ServletContextHandler handler = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
        handler.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        Server server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])));
        server.setHandler(handler);
        server.start();
        server.join();
    }
}
