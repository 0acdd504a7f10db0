# Spark's official image with the plugin's jar; `spark.plugins` is then the only setting.
#   cp "$(parcae spark jar)" . && docker build -f deploy/spark.Dockerfile -t spark-parcae .
FROM apache/spark:4.0.1
COPY parcae-spark_2.13-*.jar /opt/spark/jars/
