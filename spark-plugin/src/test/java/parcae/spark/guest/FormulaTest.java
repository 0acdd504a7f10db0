package parcae.spark.guest;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.junit.jupiter.api.Test;
import parcae.spark.Check;

/** The values of formulas are those of Python, to the last bit. */
final class FormulaTest {
  private static Formula formula(JsonNode program) {
    List<String> words = new ArrayList<>();
    program.forEach(word -> words.add(word.asText()));
    return new Formula(words);
  }

  @Test
  void valuesAreThoseOfPython() throws Exception {
    JsonNode cases =
        new ObjectMapper().readTree(FormulaTest.class.getResource("/formulas.json"));
    for (int i = 0; i < cases.path("formulas").size(); i++) {
      Formula formula = formula(cases.path("programs").path(i));
      for (int row = 0; row < cases.path("features").size(); row++) {
        for (int place = 0; place < cases.path("names").size(); place++) {
          String name = cases.path("names").path(place).asText().toUpperCase(Locale.ROOT);
          double value = cases.path("features").path(row).path(place).asDouble();
          formula.set(Formula.Feature.valueOf(name), value);
        }
        double expected = cases.path("values").path(i).path(row).asDouble();
        Check.that(formula.value() == expected, cases.path("formulas").path(i) + " " + row);
      }
    }
  }

  @Test
  void programsThatAreNone() {
    for (List<String> words : List.of(
        List.<String>of(), List.of("rem", "1"), List.of("rem", "add"), List.of("slack"))) {
      try {
        new Formula(words);
        throw new AssertionError(words + " is a formula");
      } catch (IllegalArgumentException error) {
        Check.that(error.getMessage() != null, "a message");
      }
    }
  }
}
