package kshare.e2e;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.ClassicGroupDescription;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.DescribeShareGroupsOptions;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.admin.SharePartitionOffsetInfo;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/**
 * An AdminClient. A call is a method's name with arguments in words, and what comes of it is lines of text, one for each
 * group, partition, topic or config, in their order. What fails is told as the exception's name and message.
 */
final class AdminSide {
    private final Admin admin;

    AdminSide(String bootstrap) {
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap, "client.id", "admin"));
    }

    /** Performs one call and answers its lines. */
    void call(JsonNode command, ObjectNode answer) throws Exception {
        List<String> args = new ArrayList<>();
        command.get("args").forEach(arg -> args.add(arg.asText()));
        List<String> rest = args.subList(Math.min(1, args.size()), args.size()); // what follows the name of a group
        ArrayNode lines = answer.putArray("lines");
        List<String> told = switch (command.get("call").asText()) {
            case "describeShareGroups" -> each(admin.describeShareGroups(args,
                    new DescribeShareGroupsOptions().includeAuthorizedOperations(true)).describedGroups(), AdminSide::shareGroup);
            case "describeConsumerGroups" -> each(admin.describeConsumerGroups(args).describedGroups(), AdminSide::consumerGroup);
            case "describeClassicGroups" -> each(admin.describeClassicGroups(args).describedGroups(), AdminSide::classicGroup);
            case "deleteShareGroups" -> each(admin.deleteShareGroups(args).deletedGroups(), done -> "deleted");
            case "listGroups" -> listGroups(args);
            case "listShareGroupOffsets" -> listShareGroupOffsets(args.get(0), rest);
            case "listConsumerGroupOffsets" -> one(admin.listConsumerGroupOffsets(args.get(0)).partitionsToOffsetAndMetadata(),
                    offsets -> List.of("offsets " + offsets));
            case "alterShareGroupOffsets" -> alterShareGroupOffsets(args.get(0), rest);
            case "deleteShareGroupOffsets" -> deleteShareGroupOffsets(args.get(0), rest);
            case "incrementalAlterConfigs" -> incrementalAlterConfigs(args.get(0), rest);
            case "describeConfigs" -> each(admin.describeConfigs(args.stream().map(AdminSide::group).toList(),
                    new DescribeConfigsOptions().includeSynonyms(true)).values(), AdminSide::configs);
            case "listConfigResources" -> one(admin.listConfigResources(Set.of(ConfigResource.Type.valueOf(args.get(0))),
                    new ListConfigResourcesOptions()).all(), found -> found.stream().map(ConfigResource::toString).toList());
            default -> throw new IllegalArgumentException("unknown call " + command.get("call"));
        };
        told.forEach(lines::add);
    }

    /** Prints what one future gives: sorted lines, or its exception. */
    private static <T> List<String> one(Future<T> future, Function<T, List<String>> print) throws InterruptedException {
        try {
            List<String> lines = new ArrayList<>(print.apply(future.get()));
            Collections.sort(lines);
            return lines;
        } catch (ExecutionException e) {
            return List.of(e.getCause().getClass().getSimpleName() + ": " + e.getCause().getMessage());
        }
    }

    /** Prints what the futures of several things give, a thing's name before each first line. */
    private static <K, T> List<String> each(Map<K, ? extends Future<T>> futures, Function<T, String> print) throws InterruptedException {
        Map<String, Future<T>> named = new TreeMap<>();
        futures.forEach((key, future) -> named.put(key.toString(), future));
        List<String> lines = new ArrayList<>();
        for (Map.Entry<String, Future<T>> e : named.entrySet()) {
            lines.add(e.getKey() + ": " + String.join("\n", one(e.getValue(), value -> List.of(print.apply(value)))));
        }
        return lines.stream().flatMap(String::lines).toList();
    }

    private static String shareGroup(ShareGroupDescription g) {
        String members = g.members().stream()
                .map(m -> "\nmember " + m.consumerId() + " epoch " + m.memberEpoch() + " client " + m.clientId() + " host " + m.host()
                        + " rack " + m.rackId() + " has " + sorted(m.assignment().topicPartitions()))
                .sorted().collect(Collectors.joining());
        return "group " + g.groupId() + " " + g.groupState() + " at " + g.coordinator() + ", group epoch " + g.groupEpoch()
                + ", assignment epoch " + g.targetAssignmentEpoch() + ", may " + sorted(g.authorizedOperations()) + members;
    }

    private static String consumerGroup(ConsumerGroupDescription g) {
        return g.type() + " " + g.groupState() + " assignor '" + g.partitionAssignor() + "' members " + g.members().size();
    }

    private static String classicGroup(ClassicGroupDescription g) {
        return "Classic " + g.state() + " protocol '" + g.protocol() + "' members " + g.members().size();
    }

    private static List<String> sorted(Collection<?> things) {
        return things.stream().map(Object::toString).sorted().toList();
    }

    /** Arguments: "type=share", "state=Empty", "protocol=share", each as often as there are such filters. */
    private List<String> listGroups(List<String> filters) throws InterruptedException {
        Set<GroupType> types = new HashSet<>();
        Set<GroupState> states = new HashSet<>();
        Set<String> protocols = new HashSet<>();
        for (String filter : filters) {
            String value = after(filter, '=');
            switch (before(filter, '=')) {
                case "type" -> types.add(GroupType.parse(value));
                case "state" -> states.add(GroupState.parse(value));
                case "protocol" -> protocols.add(value);
                default -> throw new IllegalArgumentException(filter);
            }
        }
        return one(admin.listGroups(new ListGroupsOptions().withTypes(types).inGroupStates(states).withProtocolTypes(protocols)).all(),
                found -> found.stream().map(AdminSide::listing).toList());
    }

    private static String listing(GroupListing g) {
        return g.groupId() + " " + g.type() + " '" + g.protocol() + "' " + g.groupState();
    }

    /** Arguments: a group, partitions as "topic:0"; all without any. */
    private List<String> listShareGroupOffsets(String group, List<String> partitions) throws InterruptedException {
        ListShareGroupOffsetsSpec spec = new ListShareGroupOffsetsSpec();
        if (!partitions.isEmpty()) {
            spec.topicPartitions(partitions.stream().map(AdminSide::partition).toList());
        }
        return one(admin.listShareGroupOffsets(Map.of(group, spec)).partitionsToOffsetInfo(group),
                found -> found.isEmpty() ? List.of("none") : found.entrySet().stream().map(e -> e.getKey() + ": " + offset(e.getValue())).toList());
    }

    private static String offset(SharePartitionOffsetInfo o) {
        return o == null ? "null" : o.startOffset() + " leader epoch " + o.leaderEpoch() + " lag " + o.lag();
    }

    /** Arguments: a group, offsets as "topic:0=5". */
    private List<String> alterShareGroupOffsets(String group, List<String> offsets) throws InterruptedException {
        Map<TopicPartition, Long> wanted = new HashMap<>();
        offsets.forEach(o -> wanted.put(partition(before(o, '=')), Long.parseLong(after(o, '='))));
        var result = admin.alterShareGroupOffsets(group, wanted);
        Map<TopicPartition, Future<Void>> each = new HashMap<>();
        wanted.keySet().forEach(p -> each.put(p, result.partitionResult(p).toCompletionStage().toCompletableFuture()));
        return withAll(each(each, done -> "altered"), result.all());
    }

    /** Arguments: a group, topics. */
    private List<String> deleteShareGroupOffsets(String group, List<String> topics) throws InterruptedException {
        var result = admin.deleteShareGroupOffsets(group, new TreeSet<>(topics));
        Map<String, Future<Void>> each = new HashMap<>();
        topics.forEach(t -> each.put(t, result.topicResult(t).toCompletionStage().toCompletableFuture()));
        return withAll(each(each, done -> "deleted"), result.all());
    }

    /** Adds what the future for all tells, without a failure's message: it names the failed ones in the order of a hash. */
    private static List<String> withAll(List<String> lines, Future<Void> all) throws InterruptedException {
        List<String> out = new ArrayList<>(lines);
        out.addAll(one(all, done -> List.of("done")).stream().map(told -> "all: " + told.split(":")[0]).toList());
        return out;
    }

    /** Arguments: a group, "validateOnly" perhaps, "key=value" to set, "key" to delete, "key+value" to append. */
    private List<String> incrementalAlterConfigs(String group, List<String> changes) throws InterruptedException {
        List<AlterConfigOp> ops = new ArrayList<>();
        AlterConfigsOptions options = new AlterConfigsOptions();
        for (String change : changes) {
            if (change.equals("validateOnly")) {
                options.validateOnly(true);
            } else if (change.contains("=")) {
                ops.add(new AlterConfigOp(new ConfigEntry(before(change, '='), after(change, '=')), AlterConfigOp.OpType.SET));
            } else if (change.contains("+")) {
                ops.add(new AlterConfigOp(new ConfigEntry(before(change, '+'), after(change, '+')), AlterConfigOp.OpType.APPEND));
            } else {
                ops.add(new AlterConfigOp(new ConfigEntry(change, null), AlterConfigOp.OpType.DELETE));
            }
        }
        return each(admin.incrementalAlterConfigs(Map.of(group(group), ops), options).values(), done -> "altered");
    }

    private static String configs(Config c) {
        return c.entries().stream()
                .map(e -> "\n" + e.name() + "=" + e.value() + " " + e.source() + " " + e.type() + (e.isReadOnly() ? " read only" : "")
                        + (e.isSensitive() ? " sensitive" : "") + e.synonyms().stream()
                                .map(s -> ", " + s.name() + "=" + s.value() + " " + s.source()).collect(Collectors.joining()))
                .sorted().collect(Collectors.joining());
    }

    private static ConfigResource group(String name) {
        return new ConfigResource(ConfigResource.Type.GROUP, name);
    }

    private static TopicPartition partition(String p) {
        return new TopicPartition(before(p, ':'), Integer.parseInt(after(p, ':')));
    }

    private static String before(String s, char c) {
        return s.substring(0, s.indexOf(c));
    }

    private static String after(String s, char c) {
        return s.substring(s.indexOf(c) + 1);
    }
}
