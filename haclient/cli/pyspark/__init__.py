"""The commands `haclient pyspark ...`: jobs over journals and stores on Apache Spark."""
