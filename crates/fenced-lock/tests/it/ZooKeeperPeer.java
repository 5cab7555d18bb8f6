import java.util.concurrent.CountDownLatch;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.recipes.lock.LockListener;
import org.apache.zookeeper.recipes.lock.WriteLock;

/** Takes a lock, says so, and releases it when a line comes. Arguments: the recipe, the servers, the lock's path. */
public class ZooKeeperPeer {
    public static void main(String[] args) throws Exception {
        String recipe = args[0], servers = args[1], path = args[2];
        if (recipe.equals("curator")) {
            CuratorFramework client = CuratorFrameworkFactory.newClient(servers, 5000, 5000, new RetryOneTime(100));
            client.start();
            InterProcessMutex mutex = new InterProcessMutex(client, path);
            mutex.acquire();
            hold();
            mutex.release();
            client.close();
        } else {
            ZooKeeper client = new ZooKeeper(servers, 5000, event -> { });
            CountDownLatch acquired = new CountDownLatch(1);
            WriteLock lock = new WriteLock(client, path, null, new LockListener() {
                public void lockAcquired() {
                    acquired.countDown();
                }

                public void lockReleased() { }
            });
            lock.lock();
            acquired.await();
            hold();
            lock.unlock();
            client.close();
        }
    }

    private static void hold() throws Exception {
        System.out.println("held");
        System.in.read();
    }
}
