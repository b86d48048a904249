package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The golden answers are those of a real broker whose share group g got requests for other groups, every version that it
// serves. To record them anew, on a fresh broker with share groups:
//
//	go test ./proxy/serve -run TestRecordWrongType -record 127.0.0.1:9092
var recordFrom = flag.String("record", "", "broker to record golden answers from")

const wrongTypeGolden = "testdata/wrong_type-kafka-4.4.0.txt"

// goldenRequests are valid requests of members, committers and admins, all about g.
func goldenRequests(topic [16]byte, pid int64, epoch int16) []kmsg.Request {
	commit, txn := kmsg.NewPtrOffsetCommitRequest(), kmsg.NewPtrTxnOffsetCommitRequest()
	commit.Group, commit.Generation = "g", 5
	commit.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", TopicID: topic, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Partition: 0}, {Partition: 7}}}}
	simple := *commit
	simple.Generation = -1
	txn.Group, txn.TransactionalID, txn.ProducerID, txn.ProducerEpoch = "g", "tx", pid, epoch
	txn.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: "t", TopicID: topic, Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Partition: 0}, {Partition: 7}}}}

	fetch, fetchAll := kmsg.NewPtrOffsetFetchRequest(), kmsg.NewPtrOffsetFetchRequest()
	group := kmsg.NewOffsetFetchRequestGroup()
	group.Group = "g"
	fetchAll.Group, fetchAll.Groups = "g", []kmsg.OffsetFetchRequestGroup{group}
	group.Topics = []kmsg.OffsetFetchRequestGroupTopic{{Topic: "t", TopicID: topic, Partitions: []int32{0, 7}}}
	fetch.Group, fetch.Groups = "g", []kmsg.OffsetFetchRequestGroup{group}
	fetch.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: []int32{0, 7}}}
	del := kmsg.NewPtrOffsetDeleteRequest()
	del.Group, del.Topics = "g", []kmsg.OffsetDeleteRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 0}}}}

	join, heartbeat := kmsg.NewPtrJoinGroupRequest(), kmsg.NewPtrHeartbeatRequest()
	join.Group, join.ProtocolType, join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = "g", "consumer", 45_000, 45_000
	join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: []byte{1}}}
	heartbeat.Group, heartbeat.MemberID = "g", "m"
	sync, leave := kmsg.NewPtrSyncGroupRequest(), kmsg.NewPtrLeaveGroupRequest()
	sync.Group, sync.MemberID, sync.ProtocolType, sync.Protocol = "g", "m", text("consumer"), text("range")
	leave.Group, leave.MemberID = "g", "m"
	leave.Members = []kmsg.LeaveGroupRequestMember{{MemberID: "m"}, {InstanceID: text("i")}}

	describe, consumers, streams := kmsg.NewPtrDescribeGroupsRequest(), kmsg.NewPtrConsumerGroupDescribeRequest(), kmsg.NewPtrStreamsGroupDescribeRequest()
	describe.Groups, consumers.Groups, streams.Groups = []string{"g"}, []string{"g"}, []string{"g"}
	consumers.IncludeAuthorizedOperations, streams.IncludeAuthorizedOperations = true, true
	allowed := *describe
	allowed.IncludeAuthorizedOperations = true

	reqs := []kmsg.Request{commit, &simple, txn, fetch, fetchAll, del, join, heartbeat, sync, leave, describe, &allowed, consumers, streams}
	for _, epoch := range []int32{0, 3, -1} { // join, go on, leave
		consumer, stream := kmsg.NewPtrConsumerGroupHeartbeatRequest(), kmsg.NewPtrStreamsGroupHeartbeatRequest()
		consumer.Group, consumer.MemberID, consumer.MemberEpoch = "g", "AAAAAAAAQACAAAAAAAAAAg", epoch
		stream.Group, stream.MemberID, stream.MemberEpoch = "g", "AAAAAAAAQACAAAAAAAAAAg", epoch
		if epoch == 0 {
			consumer.RebalanceTimeoutMillis, consumer.SubscribedTopicNames, consumer.Topics = 1000, []string{"t"}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
			stream.RebalanceTimeoutMillis, stream.ProcessID = 1000, text("p")
			stream.ActiveTasks, stream.StandbyTasks, stream.WarmupTasks = []kmsg.TaskIDs{}, []kmsg.TaskIDs{}, []kmsg.TaskIDs{}
			topology := kmsg.NewStreamsGroupHeartbeatRequestTopology()
			topology.Epoch = 1
			stream.Topology = &topology
		}
		reqs = append(reqs, consumer, stream)
	}
	return reqs
}

func TestRefusalsAreARealBrokersByteByByte(t *testing.T) {
	f, err := os.Open(wrongTypeGolden)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var topic []byte
	lines := bufio.NewScanner(f)
	for lines.Scan() && topic == nil {
		_, _ = fmt.Sscanf(lines.Text(), "topic %x", &topic)
	}
	r, c := misused(t)
	reqs := goldenRequests([16]byte(topic), 0, 0)
	seen := 0
	for ok := true; ok; ok = lines.Scan() {
		var i int
		var version int16
		var want []byte
		if _, err := fmt.Sscanf(lines.Text(), "%d %d %x", &i, &version, &want); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		reqs[i].SetVersion(version)
		if got := r.ask(r.w.ctx, c, reqs[i]).AppendTo(nil); !bytes.Equal(got, want) {
			t.Errorf("%T v%d\ngot  %x\nwant %x", reqs[i], version, got, want)
		}
		seen++
	}
	if seen < 80 {
		t.Errorf("%d answers", seen)
	}
}

func TestRecordWrongType(t *testing.T) {
	if *recordFrom == "" {
		t.Skip("no -record address")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(*recordFrom), kgo.TransactionalID("tx"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	topic := prepareMisuse(t, ctx, cl)
	pid, epoch, err := cl.ProducerID(ctx)
	if err != nil {
		t.Fatal(err)
	}
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = "tx", pid, epoch, "g"
	if resp, err := add.RequestWith(ctx, cl); err != nil || resp.ErrorCode != 0 {
		t.Fatalf("AddOffsetsToTxn: %v, %+v", err, resp)
	}
	versions, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, cl)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "topic %x\n", topic)
	for i, req := range goldenRequests(topic, pid, epoch) {
		for _, k := range versions.ApiKeys {
			for version := k.MinVersion; k.ApiKey == req.Key() && version <= min(k.MaxVersion, req.MaxVersion()); version++ {
				req.SetVersion(version)
				fmt.Fprintf(&out, "%d %d %s\n", i, version, hex.EncodeToString(rawAnswer(t, *recordFrom, req)))
			}
		}
	}
	if err := os.WriteFile(wrongTypeGolden, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// prepareMisuse makes the topic t and the share group g.
func prepareMisuse(t *testing.T, ctx context.Context, cl *kgo.Client) (topic [16]byte) {
	t.Helper()
	create := kmsg.NewPtrCreateTopicsRequest()
	create.TimeoutMillis = 10_000
	create.Topics = []kmsg.CreateTopicsRequestTopic{{Topic: "t", NumPartitions: 8, ReplicationFactor: 1}}
	created, err := create.RequestWith(ctx, cl)
	if err != nil || created.Topics[0].ErrorCode != 0 {
		t.Fatalf("CreateTopics: %v, %+v", err, created)
	}
	join := kmsg.NewPtrShareGroupHeartbeatRequest()
	join.GroupID, join.MemberID, join.SubscribedTopicNames = "g", "m", []string{"t"}
	for { // the first one has the coordinator's topic made
		joined, err := join.RequestWith(ctx, cl)
		if err == nil && joined.ErrorCode == 0 {
			return created.Topics[0].TopicID
		}
		select {
		case <-ctx.Done():
			t.Fatalf("ShareGroupHeartbeat: %v, %+v", err, joined)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// rawAnswer is the body of the response to the request at its own version.
func rawAnswer(t *testing.T, addr string, req kmsg.Request) []byte {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write(kmsg.NewRequestFormatter().AppendRequest(nil, req, 1))
	size := make([]byte, 4)
	if _, err := io.ReadFull(conn, size); err != nil {
		t.Fatalf("%T v%d: %v", req, req.GetVersion(), err)
	}
	b := make([]byte, binary.BigEndian.Uint32(size))
	if _, err := io.ReadFull(conn, b); err != nil {
		t.Fatal(err)
	}
	header := 4
	if req.IsFlexible() {
		header++ // no tags
	}
	return b[header:]
}
