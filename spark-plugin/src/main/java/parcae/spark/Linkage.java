package parcae.spark;

import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashSet;
import java.util.Set;
import java.util.TreeSet;

/**
 * Checks whether the plugin fits a Spark: whether all classes and members that it uses exist.
 *
 * <p>Java checks the same, but only when it runs the code that uses a member. The class path is the
 * plugin's jar and those of Spark. Prints the number of what was looked up, then a line for each
 * that is missing.
 */
public final class Linkage {
  private static final String FIRST = "parcae/spark/ParcaePlugin";
  private static final String OURS = "parcae/";
  /** What the plugin reaches by reflection, which class files do not say. */
  private static final String[] REFLECTIVE = {
    "org.apache.spark.scheduler.TaskSchedulerImpl#schedulableBuilder",
    "org.apache.spark.scheduler.TaskSchedulerImpl#taskSetsByStageIdAndAttempt",
    "org.apache.spark.ui.JettyUtils#createServletHandler",
    "org.apache.spark.ui.SparkUI#attachHandler",
    "org.apache.spark.ui.UIUtils$#prependBaseUri",
  };

  private static final ClassLoader LOADER = Linkage.class.getClassLoader();
  private static final MethodHandles.Lookup LOOKUP = MethodHandles.lookup();

  /** Tags of a class file's constants; a long or double takes two places. */
  private static final int UTF8 = 1;
  private static final int LONG = 5;
  private static final int DOUBLE = 6;
  private static final int CLASS = 7;
  private static final int STRING = 8;
  private static final int FIELD = 9;
  private static final int INTERFACE_METHOD = 11;
  private static final int METHOD_HANDLE = 15;
  private static final int METHOD_TYPE = 16;

  private final Set<String> looked = new HashSet<>();
  private final Set<String> missing = new TreeSet<>();

  /** Looks everything up. */
  public static void main(String[] arguments) throws IOException {
    Linkage linkage = new Linkage();
    Set<String> seen = new HashSet<>(Set.of(FIRST));
    Deque<String> waiting = new ArrayDeque<>(seen);
    while (!waiting.isEmpty()) {
      String name = waiting.pop();
      // Only the plugin's classes are followed; Spark's classes need no check.
      for (String used : linkage.check(name)) {
        if (used.startsWith(OURS) && seen.add(used)) {
          waiting.push(used);
        }
      }
    }
    for (String member : REFLECTIVE) {
      linkage.checkReflective(member);
    }
    System.out.println(linkage.looked.size());
    linkage.missing.forEach(System.out::println);
  }

  /** Looks up what one of the plugin's classes uses. Returns the names of the classes among it. */
  private Set<String> check(String name) throws IOException {
    byte[] content;
    try (InputStream stream = LOADER.getResourceAsStream(name + ".class")) {
      if (stream == null) {
        throw new IOException("the jar lacks " + name + ".class");
      }
      content = stream.readAllBytes();
    }
    Set<String> classes = new HashSet<>();
    try (DataInputStream in = new DataInputStream(new ByteArrayInputStream(content))) {
      in.skipBytes(8); // what every class file begins with, and its version
      Object[] constants = constants(in);
      for (Object constant : constants) {
        if (constant instanceof int[]) {
          int[] parts = (int[]) constant;
          if (parts[0] == CLASS) {
            classes.add(element((String) constants[parts[1]]));
          } else if (parts[0] >= FIELD && parts[0] <= INTERFACE_METHOD) {
            int[] pair = (int[]) constants[parts[2]];
            String owner = (String) constants[((int[]) constants[parts[1]])[1]];
            String member = (String) constants[pair[1]];
            checkMember(owner, member, (String) constants[pair[2]], parts[0] == FIELD);
          }
        }
      }
    } catch (IOException error) {
      throw new IOException(name + ".class: " + error, error);
    }
    classes.remove("");
    classes.forEach(this::find);
    checkBodies(name);
    return classes;
  }

  /** The constants: texts, and other entries as their tag and the places of other constants. */
  private static Object[] constants(DataInputStream in) throws IOException {
    Object[] constants = new Object[in.readUnsignedShort()];
    for (int row = 1; row < constants.length; row++) {
      int tag = in.readUnsignedByte();
      if (tag == UTF8) {
        constants[row] = in.readUTF();
      } else if (tag == LONG || tag == DOUBLE) {
        in.readLong();
        row++;
      } else if (tag == METHOD_HANDLE) {
        in.skipBytes(3);
      } else if (tag == CLASS || tag == STRING || tag == METHOD_TYPE) {
        constants[row] = new int[] {tag, in.readUnsignedShort()};
      } else {
        constants[row] = new int[] {tag, in.readUnsignedShort(), in.readUnsignedShort()};
      }
    }
    return constants;
  }

  /** The class of an array's elements, empty for numbers; the class itself if it is no array. */
  private static String element(String name) {
    if (!name.startsWith("[")) {
      return name;
    }
    return name.endsWith(";") ? name.substring(name.indexOf('L') + 1, name.length() - 1) : "";
  }

  /** The class of that name, or null after noting what is missing. */
  private Class<?> find(String name) {
    looked.add(name);
    try {
      return Class.forName(name.replace('/', '.'), false, LOADER);
    } catch (ClassNotFoundException | NoClassDefFoundError error) {
      missing.add("the class " + error.getMessage().replace('/', '.'));
      return null;
    }
  }

  private void checkMember(String owner, String name, String type, boolean isField) {
    if (owner.startsWith("[") || find(owner) == null) { // arrays have Object's methods only
      return;
    }
    Class<?> declaring = find(owner);
    looked.add(owner + "." + name + type);
    String place = owner.replace('/', '.') + "." + name;
    try {
      if (isField) {
        Class<?> of = MethodType.fromMethodDescriptorString("()" + type, LOADER).returnType();
        LOOKUP.findGetter(declaring, name, of);
      } else {
        MethodType of = MethodType.fromMethodDescriptorString(type, LOADER);
        if (name.equals("<init>")) {
          LOOKUP.findConstructor(declaring, of);
        } else {
          LOOKUP.findVirtual(declaring, name, of);
        }
      }
    } catch (NoSuchFieldException error) {
      missing.add("the field " + place);
    } catch (NoSuchMethodException error) {
      missing.add("the method " + place + type);
    } catch (IllegalAccessException error) {
      // It exists: it is static, or protected.
    } catch (TypeNotPresentException error) {
      missing.add("the class " + error.typeName());
    } catch (LinkageError error) {
      missing.add("the class " + String.valueOf(error.getMessage()).replace('/', '.'));
    }
  }

  /** Notes the abstract methods that one of the plugin's classes inherits without a body. */
  private void checkBodies(String name) {
    Class<?> ours = find(name);
    if (ours == null || Modifier.isAbstract(ours.getModifiers())) {
      return;
    }
    try {
      for (Method method : ours.getMethods()) {
        if (Modifier.isAbstract(method.getModifiers())) {
          String of = method.getDeclaringClass().getName() + "." + method.getName();
          missing.add("a body of " + of + " in " + ours.getName());
        }
      }
    } catch (NoClassDefFoundError error) {
      missing.add("the class " + error.getMessage().replace('/', '.'));
    }
  }

  private void checkReflective(String member) {
    String[] parts = member.split("#");
    looked.add(member);
    Class<?> declaring = find(parts[0].replace('.', '/'));
    Set<String> names = new HashSet<>();
    try {
      if (declaring != null) {
        Arrays.stream(declaring.getDeclaredFields()).forEach(field -> names.add(field.getName()));
        Arrays.stream(declaring.getDeclaredMethods()).forEach(each -> names.add(each.getName()));
      }
    } catch (NoClassDefFoundError error) {
      missing.add("the class " + error.getMessage().replace('/', '.'));
    }
    if (!names.contains(parts[1])) {
      missing.add("the private member " + parts[0] + "." + parts[1]);
    }
  }
}
