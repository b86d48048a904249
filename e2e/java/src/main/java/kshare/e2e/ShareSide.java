package kshare.e2e;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The share consumer of a driver. Only what clients 4.1 to 4.4 have in common is named here. */
final class ShareSide {
    private final Driver driver;
    private KafkaShareConsumer<byte[], byte[]> consumer;
    private boolean explicit;
    private ArrayNode calledBack = Driver.JSON.createArrayNode();

    ShareSide(Driver driver) {
        this.driver = driver;
    }

    void start(JsonNode command) {
        Properties p = new Properties();
        command.get("config").fields().forEachRemaining(e -> p.put(e.getKey(), e.getValue().asText()));
        explicit = "explicit".equals(p.getProperty("share.acknowledgement.mode"));
        p.putIfAbsent("key.deserializer", ByteArrayDeserializer.class.getName());
        p.putIfAbsent("value.deserializer", ByteArrayDeserializer.class.getName());
        consumer = new KafkaShareConsumer<>(p);
        if (command.path("callback").asBoolean()) {
            consumer.setAcknowledgementCommitCallback((offsets, e) -> offsets.forEach((tp, of) -> of.forEach(
                    offset -> calledBack.addArray().add(tp.partition()).add(offset).add(e == null ? "" : text(e)))));
        }
        consumer.subscribe(List.of(command.get("topic").asText()));
    }

    /** Answers records as [partition, offset, deliveryCount, key]. */
    void poll(JsonNode command, ObjectNode answer) {
        ArrayNode records = answer.putArray("records");
        for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(command.get("timeoutMs").asLong()))) {
            records.addArray().add(r.partition()).add(r.offset()).add(count(r)).add(r.key() == null ? "" : new String(r.key()));
            last.add(r);
        }
        callbacks(answer);
    }

    /** Adds what the acknowledgement callback has heard since the last answer, as [partition, offset, error]. */
    private void callbacks(ObjectNode answer) {
        answer.set("callbacks", calledBack);
        calledBack = Driver.JSON.createArrayNode();
    }

    /** Records polled and not acknowledged yet, so that a test may name them by offset. */
    private final List<ConsumerRecord<byte[], byte[]>> last = new ArrayList<>();

    void acknowledge(JsonNode command) {
        int partition = command.get("partition").asInt();
        long offset = command.get("offset").asLong();
        for (int i = last.size() - 1; i >= 0; i--) { // the newest delivery of the record
            ConsumerRecord<byte[], byte[]> r = last.get(i);
            if (r.partition() == partition && r.offset() == offset) {
                consumer.acknowledge(r, AcknowledgeType.valueOf(command.get("type").asText()));
                return;
            }
        }
        throw new IllegalArgumentException("not delivered: " + partition + "-" + offset);
    }

    /** Answers what went wrong by partition (an empty object when all acknowledgements succeeded), and which partitions have a result. */
    void commit(ObjectNode answer) {
        Map<TopicIdPartition, Optional<KafkaException>> result = consumer.commitSync();
        errors(result, answer.putObject("errors"));
        ArrayNode committed = answer.putArray("committed");
        result.keySet().forEach(tp -> committed.add(tp.partition()));
        last.clear();
        callbacks(answer);
    }

    private static void errors(Map<TopicIdPartition, Optional<KafkaException>> result, ObjectNode into) {
        result.forEach((tp, e) -> e.ifPresent(x -> into.put(Integer.toString(tp.partition()), text(x))));
    }

    private static String text(Exception e) {
        return e.getClass().getSimpleName() + ": " + e.getMessage();
    }

    /**
     * Consumes until the next command. Each poll that brought records is one line: what was
     * delivered, what was acknowledged how, and what failed by partition ("*" when the commit
     * itself threw).
     */
    void audit(JsonNode command) throws InterruptedException {
        long holdMs = command.path("holdMs").asLong(0);
        long rejectEvery = command.path("rejectEvery").asLong(0);
        long releaseEvery = command.path("releaseEvery").asLong(0);
        while (!driver.commandWaiting()) {
            ConsumerRecords<byte[], byte[]> records;
            ObjectNode line = Driver.JSON.createObjectNode();
            try {
                records = consumer.poll(Duration.ofMillis(200));
            } catch (KafkaException e) {
                line.put("pollError", text(e));
                Driver.print(line);
                continue;
            }
            if (records.isEmpty()) {
                continue;
            }
            line.put("polledAt", System.currentTimeMillis());
            Thread.sleep(holdMs); // the consumer's work
            Runs delivered = new Runs(line.putArray("delivered"));
            Runs acked = new Runs(line.putArray("acked"));
            for (ConsumerRecord<byte[], byte[]> r : records) {
                int count = count(r);
                delivered.add(r.partition(), r.offset(), count);
                AcknowledgeType type = AcknowledgeType.ACCEPT;
                if (explicit) {
                    if (rejectEvery > 0 && r.offset() % rejectEvery == rejectEvery - 1) {
                        type = AcknowledgeType.REJECT;
                    } else if (releaseEvery > 0 && count == 1 && r.offset() % releaseEvery == 0) {
                        type = AcknowledgeType.RELEASE;
                    }
                    consumer.acknowledge(r, type);
                }
                acked.add(r.partition(), r.offset(), type.id);
            }
            delivered.flush();
            acked.flush();
            ObjectNode errors = line.putObject("errors");
            try {
                Map<TopicIdPartition, Optional<KafkaException>> result = consumer.commitSync();
                errors(result, errors);
                for (TopicPartition tp : records.partitions()) { // no answer is no success
                    if (result.keySet().stream().noneMatch(id -> id.topicPartition().equals(tp))) {
                        errors.put(Integer.toString(tp.partition()), "no result in the answer of commitSync");
                    }
                }
            } catch (KafkaException e) {
                errors.put("*", text(e));
            }
            line.put("ackedAt", System.currentTimeMillis());
            Driver.print(line);
        }
    }

    void close(ObjectNode answer) {
        consumer.close();
        callbacks(answer);
    }

    private static int count(ConsumerRecord<?, ?> r) {
        return r.deliveryCount().map(Short::intValue).orElse(0);
    }

    /** Folds consecutive offsets of one partition with one value into [partition, first, last, value]. */
    private static final class Runs {
        private final ArrayNode out;
        private int partition = -1;
        private long first;
        private long last;
        private int value;

        Runs(ArrayNode out) {
            this.out = out;
        }

        void add(int partition, long offset, int value) {
            if (this.partition == partition && offset == last + 1 && this.value == value) {
                last = offset;
                return;
            }
            flush();
            this.partition = partition;
            this.value = value;
            first = last = offset;
        }

        void flush() {
            if (partition >= 0) {
                out.addArray().add(partition).add(first).add(last).add(value);
            }
            partition = -1;
        }
    }
}
