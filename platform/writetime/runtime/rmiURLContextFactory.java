package writetime.rmi;

import java.net.URI;
import java.rmi.NotBoundException;
import java.rmi.RemoteException;
import java.rmi.registry.LocateRegistry;
import java.util.Hashtable;
import javax.naming.CommunicationException;
import javax.naming.Context;
import javax.naming.InitialContext;
import javax.naming.Name;
import javax.naming.NameNotFoundException;
import javax.naming.NamingException;
import javax.naming.spi.ObjectFactory;

/** Resolves `rmi://host:port/name`, which JMX does by JNDI; the JDK's own way is in `jdk.naming.rmi`, which not all have. */
public class rmiURLContextFactory implements ObjectFactory
{
    public Object getObjectInstance(Object object, Name name, Context context, Hashtable<?, ?> environment) throws NamingException
    {
        return new Registry();
    }

    private static class Registry extends InitialContext
    {
        Registry() throws NamingException
        {
            super(true);
        }

        public Object lookup(String name) throws NamingException
        {
            URI uri = URI.create(name);
            try
            {
                return LocateRegistry.getRegistry(uri.getHost(), uri.getPort()).lookup(uri.getPath().substring(1));
            }
            catch (NotBoundException e)
            {
                throw new NameNotFoundException(name);
            }
            catch (RemoteException e)
            {
                NamingException failure = new CommunicationException(name + ": " + e.getMessage());
                failure.setRootCause(e);
                throw failure;
            }
        }

        public void close()
        {
        }
    }
}
