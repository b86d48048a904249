package kshare.e2e;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * Runs one Kafka client under the command of a test: a JSON object per line on standard input, and
 * an answer per line on standard output. Everything else (client logs) goes to standard error.
 *
 * <p>Every command is answered by exactly one line with "ok" or "error"; the audit command prints
 * a line per poll before its answer.
 */
public final class Driver {
    static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream OUT = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), true);

    private final BlockingQueue<JsonNode> commands = new LinkedBlockingQueue<>();
    private final ShareSide share = new ShareSide(this);
    private final OrdinarySide ordinary = new OrdinarySide();
    private AdminSide admin; // made when it is asked for, for some of its calls are newer than the oldest clients

    public static void main(String[] args) throws Exception {
        System.setOut(System.err); // nothing but answers may reach the test
        new Driver().run();
    }

    static void print(JsonNode line) {
        OUT.println(line.toString());
    }

    /** True once the next command has arrived: a loop that may be told to stop looks here. */
    boolean commandWaiting() {
        return !commands.isEmpty();
    }

    private void run() throws Exception {
        Thread reader = new Thread(this::readCommands, "commands");
        reader.setDaemon(true);
        reader.start();
        while (true) {
            JsonNode command = commands.take();
            String op = command.get("op").asText();
            ObjectNode answer = JSON.createObjectNode();
            try {
                perform(op, command, answer);
                answer.put("ok", true);
            } catch (Exception e) {
                e.printStackTrace();
                answer.put("error", e.getClass().getSimpleName() + ": " + e.getMessage());
            }
            print(answer);
            if (op.equals("exit")) {
                System.exit(0);
            }
        }
    }

    private void perform(String op, JsonNode command, ObjectNode answer) throws Exception {
        switch (op) {
            case "start" -> share.start(command);
            case "poll" -> share.poll(command, answer);
            case "ack" -> share.acknowledge(command);
            case "commit" -> share.commit(answer);
            case "audit" -> share.audit(command);
            case "close" -> share.close(answer);
            case "produce" -> ordinary.produce(command, answer);
            case "consume" -> ordinary.consume(command, answer);
            case "admin" -> {
                if (admin == null) {
                    admin = new AdminSide(command.get("bootstrap").asText());
                }
                admin.call(command, answer);
            }
            case "stop", "exit" -> { }
            default -> throw new IllegalArgumentException("unknown command " + op);
        }
    }

    private void readCommands() {
        try (BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                commands.add(JSON.readTree(line));
            }
        } catch (Exception e) {
            e.printStackTrace();
        }
        System.exit(0); // the test has gone
    }
}
