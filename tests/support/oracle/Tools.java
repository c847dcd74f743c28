import java.lang.reflect.InvocationTargetException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.Permission;
import java.util.Arrays;

/** Runs command-line tools of Cassandra in one process, one after the other. Each of them ends its process itself. */
public class Tools
{
    private static class Ended extends Error
    {
        final int status;

        Ended(int status)
        {
            this.status = status;
        }
    }

    /** Argument: a file of lines, each the name of a class and its arguments, with tabs between them. */
    public static void main(String[] args) throws Exception
    {
        // With a security manager, no class may register a bean unless a policy trusts it.
        System.setProperty("org.apache.cassandra.disable_mbean_registration", "true");
        System.setSecurityManager(new SecurityManager()
        {
            public void checkExit(int status)
            {
                throw new Ended(status);
            }

            public void checkPermission(Permission permission)
            {
            }
        });
        for (String line : Files.readAllLines(Path.of(args[0])))
            System.out.println("status " + run(line.split("\t")) + " of " + line.replace('\t', ' '));
        System.out.flush();
        System.setSecurityManager(null);
        Runtime.getRuntime().halt(0);
    }

    private static int run(String[] words) throws Exception
    {
        try
        {
            String[] arguments = Arrays.copyOfRange(words, 1, words.length);
            Class.forName(words[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
        }
        catch (InvocationTargetException e)
        {
            if (e.getCause() instanceof Ended)
                return ((Ended) e.getCause()).status;
            e.getCause().printStackTrace(System.out);
            return -1;
        }
        return 0;
    }
}
