package parcae.spark.guest;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.URI;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.EnumSet;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.Options;

/** A small file that other programs may write, too: a local one, or one of any Hadoop path. */
final class SharedFile {
  private static final String LOCK = ".lock";
  private final String file;
  private final Configuration hadoop;

  SharedFile(String file, Configuration hadoop) {
    this.file = file;
    this.hadoop = hadoop;
  }

  /** Hadoop's local files have check sums beside them, which other programs do not write. */
  private boolean isPlain() {
    return URI.create(file.replace(" ", "%20")).getScheme() == null;
  }

  /** The content, up to so many bytes. */
  byte[] read(int mostBytes) throws IOException {
    org.apache.hadoop.fs.Path path = new org.apache.hadoop.fs.Path(file);
    try (InputStream stream = isPlain()
        ? Files.newInputStream(Path.of(file))
        : path.getFileSystem(hadoop).open(path)) {
      return stream.readNBytes(mostBytes);
    }
  }

  /** The content as of `read`; empty if there is no file. */
  byte[] readIfThere(int mostBytes) throws IOException {
    try {
      return read(mostBytes);
    } catch (NoSuchFileException | FileNotFoundException error) {
      return new byte[0];
    }
  }

  /**
   * Claims the file, by a file beside it, so that others wait with changing it; returns whether
   * nobody else has it.
   */
  boolean claim() throws IOException {
    try {
      if (isPlain()) {
        Files.createFile(Path.of(file + LOCK));
      } else {
        org.apache.hadoop.fs.Path lock = new org.apache.hadoop.fs.Path(file + LOCK);
        FileContext.getFileContext(lock.toUri(), hadoop)
            .create(lock, EnumSet.of(CreateFlag.CREATE)).close();
      }
      return true;
    } catch (FileAlreadyExistsException | org.apache.hadoop.fs.FileAlreadyExistsException error) {
      return false;
    }
  }

  /** Ends a claim, of whoever has it. */
  void release() throws IOException {
    if (isPlain()) {
      Files.deleteIfExists(Path.of(file + LOCK));
    } else {
      org.apache.hadoop.fs.Path lock = new org.apache.hadoop.fs.Path(file + LOCK);
      lock.getFileSystem(hadoop).delete(lock, false);
    }
  }

  /** Writes the content beside the file and renames that, so that nobody reads a part of it. */
  void replace(byte[] content) throws IOException {
    String beside = file + "." + UUID.randomUUID() + ".tmp";
    if (isPlain()) {
      Path made = Path.of(beside);
      try {
        Files.write(made, content);
        Files.move(made, Path.of(file), StandardCopyOption.ATOMIC_MOVE);
      } finally {
        Files.deleteIfExists(made);
      }
      return;
    }
    org.apache.hadoop.fs.Path made = new org.apache.hadoop.fs.Path(beside);
    org.apache.hadoop.fs.Path target = new org.apache.hadoop.fs.Path(file);
    FileContext files = FileContext.getFileContext(target.toUri(), hadoop);
    try {
      try (OutputStream stream = files.create(made, EnumSet.of(CreateFlag.CREATE))) {
        stream.write(content);
      }
      files.rename(made, target, Options.Rename.OVERWRITE);
    } catch (IOException error) {
      files.delete(made, false);
      throw error;
    }
  }
}
