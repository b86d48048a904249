package kshare.e2e;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HexFormat;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** An ordinary producer and an ordinary consumer group. */
final class OrdinarySide {
    /** Produces n numbered records; answers how many were acknowledged. */
    void produce(JsonNode command, ObjectNode answer) throws Exception {
        String topic = command.get("topic").asText();
        int n = command.get("n").asInt();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(properties(command), new StringSerializer(), new StringSerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < n; i++) {
                sent.add(producer.send(new ProducerRecord<>(topic, "k" + i, "v" + i)));
            }
            producer.flush();
            int acknowledged = 0;
            for (Future<RecordMetadata> f : sent) {
                if (f.get().hasOffset()) {
                    acknowledged++;
                }
            }
            answer.put("n", acknowledged);
        }
    }

    /** Consumes n records as a group member, commits; answers their number and a digest of their contents. */
    void consume(JsonNode command, ObjectNode answer) throws Exception {
        int n = command.get("n").asInt();
        long deadline = System.nanoTime() + Duration.ofMillis(command.get("timeoutMs").asLong()).toNanos();
        List<String> seen = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(properties(command), new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(command.get("topic").asText()));
            while (seen.size() < n && System.nanoTime() < deadline) {
                for (ConsumerRecord<String, String> r : consumer.poll(Duration.ofMillis(200))) {
                    seen.add(r.partition() + "/" + r.offset() + "/" + r.key() + "/" + r.value());
                }
            }
            consumer.commitSync();
        }
        Collections.sort(seen);
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (String s : seen) {
            digest.update((s + "\n").getBytes());
        }
        answer.put("n", seen.size());
        answer.put("digest", HexFormat.of().formatHex(digest.digest()));
    }

    private static Properties properties(JsonNode command) {
        Properties p = new Properties();
        command.get("config").fields().forEachRemaining(e -> p.put(e.getKey(), e.getValue().asText()));
        return p;
    }
}
