import java.net.URI;
import java.net.http.*;

/** Posts events by the HTTP client of Java's standard library, and prints how each was answered. */
public class Client {
    public static void main(String[] args) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int n = 0; n < Integer.parseInt(args[1]); n++) {
            String body = "{\"userId\": \"ada\", \"eventType\": \"t\", \"payload\": \"" + n + "\"}";
            HttpRequest call = HttpRequest.newBuilder(URI.create(args[0]))
                .POST(HttpRequest.BodyPublishers.ofString(body)).build();
            HttpResponse<String> answer = client.send(call, HttpResponse.BodyHandlers.ofString());
            System.out.println(answer.statusCode() + " " + answer.version());
        }
    }
}
