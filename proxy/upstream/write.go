package upstream

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Writing is for dead letters only: few records, each batch one request, without a producer id. It is tried as often as a
// broker tries to write its own dead letters. The service account needs WRITE on the topic, and CREATE to make it.

const (
	// writeTries is how often a batch is sent.
	writeTries = 5
	// writeTimeout bounds one try.
	writeTimeout = 30 * time.Second
	// writeBackoff (doubled each time) is the pause between two tries, slowestBackoff the longest.
	writeBackoff   = time.Second
	slowestBackoff = 30 * time.Second
	// WritePatience is the longest that a Write takes.
	WritePatience = writeTries*writeTimeout + 15*writeBackoff*5/4
)

// ErrTooLarge: the topic does not take a batch of that size, or the batch is too large to be copied from.
var ErrTooLarge = errors.New("record batch too large")

// Out is a record to be written.
type Out struct {
	Key, Value []byte // nil is null
	Headers    []kmsg.Header
}

// OutBatch is what one Write writes.
type OutBatch struct {
	Topic string
	// Create: a topic that is missing is made, with the brokers' defaults.
	Create bool
	// Spread modulo the number of the topic's partitions is the partition.
	Spread  int32
	Records []Out
	// Tried is told of each produce request.
	Tried func(err error)
}

// writer holds the client that batches are written with, which is made for the first one.
type writer struct {
	options func() []kgo.Opt

	mu      sync.Mutex
	kgo     *kgo.Client
	closed  bool
	backoff time.Duration // writeBackoff, but for tests
}

func (w *writer) client() (*kgo.Client, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, ErrClosed
	}
	if w.kgo == nil {
		client, err := kgo.NewClient(w.options()...)
		if err != nil {
			return nil, fmt.Errorf("upstream: %w", err)
		}
		w.kgo = client
	}
	return w.kgo, nil
}

func (w *writer) close() {
	w.mu.Lock()
	client := w.kgo
	w.closed = true
	w.mu.Unlock()
	if client != nil {
		client.Close()
	}
}

func (w *writer) firstBackoff() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.backoff == 0 {
		return writeBackoff
	}
	return w.backoff
}

// WriteBackoff sets the first pause between two tries of a Write; it is for tests.
func (c *Client) WriteBackoff(d time.Duration) {
	c.writer.mu.Lock()
	defer c.writer.mu.Unlock()
	c.writer.backoff = d
}

// Write appends the records to the topic as one batch, on all replicas in sync. What may pass is tried again for a while.
// An error of ctx leaves open whether they are written.
func (c *Client) Write(ctx context.Context, b OutBatch) error {
	wait := c.writer.firstBackoff()
	for try := 1; ; try++ {
		again, err := c.write(ctx, b, try > 1)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !again || try == writeTries || !pause(ctx, wait+rand.N(wait/4+1)):
			return fmt.Errorf("writing to %s, try %d: %w", b.Topic, try, err)
		}
		wait = min(2*wait, slowestBackoff)
	}
}

// write tries once. again tells whether another try may help.
func (c *Client) write(ctx context.Context, b OutBatch, fresh bool) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	topic, again, err := c.writable(ctx, b.Topic, b.Create, fresh)
	if err != nil {
		return again, err
	}
	tp := TP{ID: topic.ID, Partition: b.Spread % topic.Partitions}
	_, leader, err := c.leader(ctx, tp)
	if err != nil {
		return true, err
	}
	client, err := c.writer.client()
	if err != nil {
		return false, err
	}
	again, err = produce(ctx, client, leader.node, topic, tp.Partition, encodeBatch(b.Records, time.Now()))
	if b.Tried != nil {
		b.Tried(err)
	}
	return again, err
}

// writable finds the topic, and makes it where that is wanted.
func (c *Client) writable(ctx context.Context, name string, create, fresh bool) (t Topic, again bool, err error) {
	for _, fresh := range []bool{fresh, true} {
		found, err := c.TopicsByName(ctx, []string{name}, fresh)
		if err != nil {
			return t, true, err
		}
		if t, ok := found[name]; ok {
			return t, false, nil
		}
	}
	if !create {
		return t, false, fmt.Errorf("%w: it does not exist, or the service account lacks WRITE on it", ErrUnknownTopicOrPartition)
	}
	if again, err = c.createTopic(ctx, name); err != nil {
		return t, again, err
	}
	for try := 0; ; try++ { // nodes learn of it at different times
		found, err := c.TopicsByName(ctx, []string{name}, true)
		if t, ok := found[name]; ok {
			return t, false, nil
		}
		if try == listTries || !pause(ctx, min(50*time.Millisecond<<try, 500*time.Millisecond)) {
			return t, true, errors.Join(fmt.Errorf("%w: it was just made", ErrUnknownTopicOrPartition), err)
		}
	}
}

// createTopic makes a topic as a broker makes one for dead letters. That it exists is no error.
func (c *Client) createTopic(ctx context.Context, name string) (again bool, err error) {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = int32((10 * time.Second).Milliseconds())
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, -1, -1
	config := kmsg.NewCreateTopicsRequestTopicConfig()
	config.Name, config.Value = "message.timestamp.type", kmsg.StringPtr("CreateTime")
	topic.Configs = append(topic.Configs, config)
	req.Topics = append(req.Topics, topic)
	resp, err := c.kgo.Request(ctx, req)
	if err != nil {
		return true, unavailable(ctx, fmt.Errorf("making the topic: %w", err))
	}
	for _, t := range resp.(*kmsg.CreateTopicsResponse).Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); t.Topic == name && err != nil && err != kerr.TopicAlreadyExists {
			again, err = writeError(err, "CREATE")
			return again, fmt.Errorf("making the topic: %w", err)
		}
	}
	return false, nil
}

func produce(ctx context.Context, client *kgo.Client, node int32, topic Topic, partition int32, batch []byte) (again bool, err error) {
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, int32(writeTimeout.Milliseconds())
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, batch
	t := kmsg.NewProduceRequestTopic()
	t.Topic, t.TopicID = topic.Name, topic.ID // v13 goes by id, older ones by name
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := ask[*kmsg.ProduceResponse](ctx, client, node, req)
	if err != nil {
		return !errors.Is(err, ErrClosed), err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if p.Partition != partition {
				continue
			}
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return writeError(err, "WRITE")
			}
			return false, nil
		}
	}
	return true, fmt.Errorf("%w: node %d left the partition out of its answer", ErrUnavailable, node)
}

// writeError turns what upstream says against a batch or a topic into one of our errors, and tells whether it may pass.
// op is what the service account needs for it.
func writeError(err error, op string) (again bool, _ error) {
	switch {
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		return false, fmt.Errorf("%w: %s is needed: %w", ErrUnauthorized, op, err)
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		return false, fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	return kerr.IsRetriable(err), err
}

// encodeBatch makes an uncompressed batch of magic 2.
func encodeBatch(records []Out, at time.Time) []byte {
	ms := at.UnixMilli()
	b := kmsg.RecordBatch{PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: int32(len(records) - 1), FirstTimestamp: ms,
		MaxTimestamp: ms, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(len(records))}
	for i, out := range records {
		r := kmsg.Record{OffsetDelta: int32(i), Key: out.Key, Value: out.Value, Headers: out.Headers}
		r.Length = int32(len(r.AppendTo(nil)) - 1) // the length of 0 takes one byte
		b.Records = r.AppendTo(b.Records)
	}
	encoded := b.AppendTo(nil)
	b.Length = int32(len(encoded) - lengthCounts)
	b.CRC = int32(crc32.Checksum(encoded[atAttributes:], castagnoli))
	return b.AppendTo(encoded[:0])
}
