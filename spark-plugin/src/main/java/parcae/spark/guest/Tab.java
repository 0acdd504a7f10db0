package parcae.spark.guest;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import org.apache.spark.SparkConf;
import org.apache.spark.ui.JettyUtils;
import org.apache.spark.ui.SparkUI;
import org.apache.spark.ui.SparkUITab;
import org.apache.spark.ui.UIUtils$;
import scala.Function0;
import scala.Function1;
import scala.collection.immutable.List$;
import scala.xml.Unparsed;

/**
 * The tab "Parcae" of Spark's user interface: the open queries in the order in which they are
 * served.
 *
 * <p>Spark 3 has servlets of `javax`, Spark 4 those of `jakarta`, and pages name these types in
 * their signatures. So the tab has no page of Spark's class but a handler of its own: Spark takes a
 * plain function for that, and what it calls is found by name.
 */
final class Tab extends SparkUITab {
  private static final String PREFIX = "parcae";
  private static final int MOST_ROWS = 500;
  private static final int MOST_CHARACTERS = 200;
  private static final String[] COLUMNS = {
      "Place", "Query", "Person", "State", "Tasks running", "Tasks to start", "Age", "Work done",
      "Work expected", "Expected by", "Why here"};

  private final Guest guest;

  private Tab(SparkUI ui, Guest guest) {
    super(ui, PREFIX);
    this.guest = guest;
  }

  /** Adds the tab to a user interface. */
  @SuppressWarnings({"rawtypes", "unchecked"})
  static void attach(SparkUI ui, SparkConf conf, Guest guest)
      throws ReflectiveOperationException {
    Tab tab = new Tab(ui, guest);
    Function1<Object, Object> page = tab::render;
    Function1<Object, String> text = nodes -> "<!DOCTYPE html>" + nodes;
    Object servlet = new JettyUtils.ServletParams(page, "text/html;charset=utf-8", text);
    Object handler = call(
        null, JettyUtils.class, "createServletHandler", "/" + PREFIX, servlet, conf, ui.basePath());
    call(ui, SparkUI.class, "attachHandler", handler);
    ui.attachTab(tab);
  }

  /** Calls the method of this name that takes so many arguments, of these classes. */
  private static Object call(Object on, Class<?> type, String name, Object... arguments)
      throws ReflectiveOperationException {
    for (Method method : type.getMethods()) {
      if (method.getName().equals(name) && takes(method, arguments)) {
        return method.invoke(on, arguments);
      }
    }
    throw new NoSuchMethodException(type.getName() + "." + name);
  }

  private static boolean takes(Method method, Object[] arguments) {
    Class<?>[] types = method.getParameterTypes();
    boolean fits = types.length == arguments.length;
    for (int i = 0; fits && i < types.length; i++) {
      fits = types[i].isInstance(arguments[i]);
    }
    return fits;
  }

  /** The nodes of the page, inside the frame that all pages of Spark have. */
  private Object render(Object request) {
    try {
      String root = (String) call(
          UIUtils$.MODULE$, UIUtils$.class, "prependBaseUri", request, basePath(), "");
      Object content = List$.MODULE$.empty().$colon$colon(new Unparsed(content(root)));
      for (Method method : UIUtils$.class.getMethods()) {
        if (method.getName().equals("headerSparkPage")) {
          Object[] arguments = new Object[method.getParameterCount()];
          arguments[0] = request;
          arguments[1] = "Parcae";
          arguments[2] = (Function0<Object>) () -> content;
          arguments[3] = this;
          for (int i = 4; i < arguments.length; i++) { // what Spark 3.3 and 4.3 do not share
            arguments[i] = UIUtils$.class.getMethod(method.getName() + "$default$" + (i + 1))
                .invoke(UIUtils$.MODULE$);
          }
          return method.invoke(UIUtils$.MODULE$, arguments);
        }
      }
      throw new NoSuchMethodException("UIUtils.headerSparkPage");
    } catch (InvocationTargetException error) {
      throw new IllegalStateException(error.getCause());
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
  }

  /** The page in HTML; `root` is the address of Spark's user interface, as the browser sees it. */
  private String content(String root) {
    Order order = guest.plannedOrder();
    List<QueryView> queries = guest.openQueries();
    queries.sort(Comparator.<QueryView>comparingInt(query -> -query.label.priority())
        .thenComparingDouble(query -> order.job(query.key).tier));
    StringBuilder page = new StringBuilder("<ul class=\"list-unstyled\">");
    fact(page, "Mode", guest.modeText());
    fact(page, "Order", guest.plannedBy());
    long waiting = queries.stream().filter(query -> query.waitedMs > 0).count();
    fact(page, "Open queries", queries.size() + ", of which " + waiting + " wait, "
        + guest.numHeld() + " held back");
    long dropped = guest.numDroppedEvents();
    if (dropped > 0) {
      fact(page, "Events that Spark dropped", String.valueOf(dropped));
    }
    page.append("</ul><table class=\"table table-bordered table-sm table-striped sortable\">")
        .append("<thead><tr>");
    for (String column : COLUMNS) {
      page.append("<th>").append(column).append("</th>");
    }
    page.append("</tr></thead><tbody>");
    for (int place = 1; place <= Math.min(queries.size(), MOST_ROWS); place++) {
      row(page, root, place, queries.get(place - 1), order);
    }
    page.append("</tbody></table>");
    if (queries.size() > MOST_ROWS) {
      page.append("<p>").append(queries.size() - MOST_ROWS).append(" more are open.</p>");
    }
    return page.toString();
  }

  private static void fact(StringBuilder page, String name, String text) {
    page.append("<li><strong>").append(name).append(":</strong> ").append(escaped(text))
        .append("</li>");
  }

  private void row(StringBuilder page, String root, int place, QueryView query, Order order) {
    boolean isJob = query.key.startsWith(Order.JOB);
    String id = isJob ? query.key.substring(Order.JOB.length()) : query.key;
    String address = root + (isJob ? "/jobs/job/?id=" : "/SQL/execution/?id=") + id;
    String name = query.label.name;
    String shown = name.length() > MOST_CHARACTERS ? name.substring(0, MOST_CHARACTERS) : name;
    page.append("<tr><td>").append(place).append("</td><td><a href=\"").append(escaped(address))
        .append("\">").append(escaped(query.key)).append("</a> <span title=\"")
        .append(escaped(name)).append("\">").append(escaped(shown)).append("</span></td>");
    cell(page, query.label.user);
    cell(page, state(query));
    cell(page, String.valueOf(query.running));
    cell(page, String.valueOf(query.toStart));
    cell(page, time(query.ageMs));
    cell(page, time(query.doneMs));
    cell(page, time(query.doneMs + query.leftMs));
    cell(page, query.label.source.name().toLowerCase(Locale.ROOT));
    cell(page, why(query, order));
    page.append("</tr>");
  }

  private static void cell(StringBuilder page, String text) {
    page.append("<td>").append(escaped(text)).append("</td>");
  }

  private static String state(QueryView query) {
    if (query.running > 0) {
      return "running";
    }
    return query.toStart > 0 ? "waiting for " + time(query.waitedMs) : "in the driver";
  }

  private String why(QueryView query, Order order) {
    Order.Job job = order.job(query.key);
    StringBuilder why = new StringBuilder();
    String reason = guest.heldReason(query.key);
    if (!reason.isEmpty()) {
      why.append(reason).append("; ");
    }
    int asked = query.label.asked();
    if (asked != 0) {
      why.append("priority ").append(query.label.priority());
      why.append(asked == query.label.priority() ? "; " : ", asked for " + asked + "; ");
    }
    why.append(time(query.leftMs)).append(" left");
    if (query.overdraftMs >= 0) {
      why.append("; its person took ").append(time(query.overdraftMs)).append(" beyond its share");
    } else if (query.overdraftMs < 0) {
      why.append("; its person is owed ").append(time(-query.overdraftMs));
    }
    if (job.limit != Order.UNLIMITED) {
      why.append("; is tried first by ").append(job.limit).append(" tasks at once");
    }
    return why.append(String.format(Locale.ROOT, "; tier %.5g", job.tier)).toString();
  }

  /** A time, or work in time of one core, as a person reads it. */
  static String time(double ms) {
    double s = ms / 1_000;
    if (s < 100) {
      return String.format(Locale.ROOT, "%.1f s", s);
    }
    return s < 6_000
        ? String.format(Locale.ROOT, "%.1f min", s / 60)
        : String.format(Locale.ROOT, "%.1f h", s / 3_600);
  }

  /** A text as HTML, also inside an attribute. */
  static String escaped(String text) {
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        .replace("\"", "&quot;").replace("'", "&#39;");
  }
}
