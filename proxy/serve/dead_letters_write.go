package serve

import (
	"context"
	"encoding/base64"
	"errors"
	"strconv"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/coordinator"
	"kshare/proxy/upstream"
	"kshare/sharestate"
	"kshare/sharestate/statelog"
)

// letterBytes is about how large the batches are that dead letters are written in; a larger copy goes alone.
const letterBytes = 256 << 10

var errNoDeadLetterTopic = errors.New("the group has no dead letter topic any more")

// letters are the dead letters of one claim.
type letters struct {
	d           *DeadLetters
	key         shareKey
	log         *statelog.Log[*sharestate.Partition]
	cfg         coordinator.Config
	set         sharestate.Settings
	incarnation int64
	claimed     []sharestate.ArchivingRange
	until       time.Time // the claim lasts longer
	topic       string    // of the records

	batch []upstream.Out
	size  int
	of    []sharestate.OffsetRange // whose letters are in batch
}

// take claims what can be claimed of the share-partition.
func (d *DeadLetters) take(ctx context.Context, key shareKey, log *statelog.Log[*sharestate.Partition], incarnation int64) (*letters, error) {
	cfg, err := d.s.config(ctx, key.group)
	if err != nil {
		return nil, err
	}
	l := &letters{d: d, key: key, log: log, cfg: cfg, set: d.s.settingsOf(cfg), incarnation: incarnation,
		until: time.Now().Add(d.claim - d.claim/20)}
	res, err := l.submit(ctx, sharestate.ClaimArchiving{Replica: d.s.o.Store.Nonce(), Incarnation: incarnation,
		MaxRecords: claimRecords, ClaimMs: int32(d.claim.Milliseconds()), Settings: l.set})
	if err != nil {
		return nil, err
	}
	claim, err := sharestate.DecodeClaimResult(res)
	l.claimed = claim.Ranges
	return l, err
}

func (l *letters) submit(ctx context.Context, op sharestate.Op) ([]byte, error) {
	p := l.log.Submit(sharestate.EncodeOp(nil, op))
	res, err := p.Wait(ctx)
	if err != nil {
		return nil, err
	}
	return res[0], nil
}

// deliver writes the dead letters and ends their records' Archiving, whether upstream took them or not. An error means
// that some are left: time ran out, or Redis is away.
func (l *letters) deliver(ctx context.Context) error {
	writing, cancel := context.WithDeadline(ctx, l.until)
	defer cancel()
	l.topic = l.sourceName(writing)
	source := &source{l: l}
	defer source.close()
	for _, r := range l.claimed {
		for offset := r.First; offset <= r.Last; offset++ {
			out := upstream.Out{Headers: l.headers(offset, r)}
			if l.cfg.DeadLetterCopyRecord {
				out.Key, out.Value = source.record(writing, offset)
			}
			size := len(out.Key) + len(out.Value) + 256
			if l.size+size > letterBytes {
				if err := l.flush(ctx, writing); err != nil {
					return err
				}
			}
			l.add(offset, out, size)
		}
	}
	return l.flush(ctx, writing)
}

func (l *letters) add(offset int64, out upstream.Out, size int) {
	l.batch = append(l.batch, out)
	l.size += size
	if n := len(l.of); n > 0 && l.of[n-1].Last == offset-1 {
		l.of[n-1].Last = offset
		return
	}
	l.of = append(l.of, sharestate.OffsetRange{First: offset, Last: offset})
}

// flush writes the batch and books the outcome.
func (l *letters) flush(ctx, writing context.Context) error {
	if len(l.batch) == 0 {
		return nil
	}
	lost, err := l.write(writing, l.batch)
	if writing.Err() != nil && err != nil {
		return err // not known, or not tried: the records stay Archiving
	}
	l.d.written.Add(float64(len(l.batch) - lost))
	if err != nil {
		l.d.lost.Add(float64(lost))
		l.d.warn(l.key.group, func(e *zerolog.Event) {
			e.Err(err).Str("group", l.key.group).Str("topic", l.topic).Int32("partition", l.key.Partition).
				Int64("first", l.of[0].First).Int("records", lost).Str("dead_letter_topic", l.cfg.DeadLetterTopic).
				Msg("dead letters could not be written and are lost; their records are archived all the same")
		})
	}
	if _, err := l.submit(ctx, sharestate.ArchivingDone{Incarnation: l.incarnation, Ranges: l.of, Settings: l.set}); err != nil {
		return err
	}
	l.d.s.o.Checkpoints.later(l.key.group, l.key.TP)
	l.batch, l.of, l.size = nil, nil, 0
	return nil
}

// write sends letters in one batch, or in more where the topic does not take so large ones. It tells how many are lost.
func (l *letters) write(ctx context.Context, batch []upstream.Out) (lost int, err error) {
	broker := &l.d.s.o.Broker
	if l.cfg.DeadLetterTopic == "" {
		return len(batch), errNoDeadLetterTopic
	}
	if err := broker.CheckDeadLetterTopic(l.cfg.DeadLetterTopic); err != nil {
		return len(batch), err
	}
	err = l.d.up.Write(ctx, upstream.OutBatch{Topic: l.cfg.DeadLetterTopic, Create: broker.DeadLetterAutoCreate,
		Spread: l.key.Partition, Records: batch, Tried: l.d.tried})
	switch {
	case err == nil:
		return 0, nil
	case !errors.Is(err, upstream.ErrTooLarge):
		return len(batch), err
	case len(batch) == 1 && batch[0].Key == nil && batch[0].Value == nil:
		return 1, err
	case len(batch) == 1: // as a broker does: the letter goes without the copy
		l.noCopy(err)
		return l.write(ctx, []upstream.Out{{Headers: batch[0].Headers}})
	}
	half := len(batch) / 2
	lost, err = l.write(ctx, batch[:half])
	more, err2 := l.write(ctx, batch[half:])
	return lost + more, errors.Join(err, err2)
}

func (d *DeadLetters) tried(err error) {
	d.requests.Inc()
	if err != nil {
		d.failures.Inc()
	}
}

// giveUp lets others write what this replica has claimed and not written, if it ends before the claim does. Its clients are
// gone by then, so it can be taken for dead already.
func (l *letters) giveUp(ctx context.Context) {
	if ctx.Err() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), letterGoodbye/4)
	defer cancel()
	if _, err := l.submit(ctx, sharestate.ReleaseReplica{Replica: l.d.s.o.Store.Nonce(), Settings: l.set}); err != nil {
		l.d.log.Debug().Err(err).Str("partition", l.log.Name()).Msg("claimed dead letters not given back, others write them when the claim runs out")
	}
}

// sourceName is the name of the records' topic; its id as Kafka prints it where the topic is gone.
func (l *letters) sourceName(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, planWait)
	defer cancel()
	if t, ok, err := l.d.up.TopicByID(ctx, l.key.ID); err == nil && ok {
		return t.Name
	}
	if topics, err := l.d.s.o.Groups.InitializedPartitions(ctx, l.key.group); err == nil {
		for _, t := range topics {
			if t.ID == l.key.ID {
				return t.Name
			}
		}
	}
	return base64.RawURLEncoding.EncodeToString(l.key.ID[:])
}

// headers are what a dead letter tells of its record, as a broker writes it.
func (l *letters) headers(offset int64, r sharestate.ArchivingRange) []kmsg.Header {
	message := "Offset delivery count exceeded the threshold."
	if r.Rejected {
		message = "Offset rejected by client."
	}
	all := [...]struct{ key, value string }{
		{"topic", l.topic},
		{"partition", strconv.Itoa(int(l.key.Partition))},
		{"offset", strconv.FormatInt(offset, 10)},
		{"group", l.key.group},
		{"delivery.count", strconv.Itoa(int(r.DeliveryCount))},
		{"message", message},
	}
	headers := make([]kmsg.Header, len(all))
	for i, h := range all {
		headers[i] = kmsg.Header{Key: "__dlq.errors." + h.key, Value: []byte(h.value)}
	}
	return headers
}
