package upstream

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// asked is what a fetch request asked of one partition.
type asked struct {
	line     *line
	topic    string
	from     int64
	epoch    int32
	maxBytes int32
}

// fetched is one partition's part of a fetch response.
type fetched struct {
	tp                TP
	hw, lso, logStart int64
	run               run
	err               error           // of the partition, or of the records where no batch could be cut
	hint              partitionLeader // node -1: none
}

// newFetch makes a request without partitions; a node that has nothing answers after maxWaitMs.
func (r *reader) newFetch(iso Isolation, maxWaitMs int32) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest() // sets the defaults, of which many are -1
	req.IsolationLevel = int8(iso)
	req.MaxWaitMillis = maxWaitMs
	req.MinBytes = 1
	req.MaxBytes = r.c.cfg.FetchMaxBytes
	return req
}

// askFor adds partitions to a fetch. Brokers from 3.1 on (v13) go by the topic's id, older ones by its name.
func askFor(req *kmsg.FetchRequest, parts map[TP]asked) {
	topics := make(map[[16]byte]int)
	for tp, a := range parts {
		i, ok := topics[tp.ID]
		if !ok {
			i = len(req.Topics)
			topics[tp.ID] = i
			topic := kmsg.NewFetchRequestTopic()
			topic.TopicID, topic.Topic = tp.ID, a.topic
			req.Topics = append(req.Topics, topic)
		}
		part := kmsg.NewFetchRequestTopicPartition()
		part.Partition, part.FetchOffset = tp.Partition, a.from
		part.CurrentLeaderEpoch, part.PartitionMaxBytes = a.epoch, a.maxBytes
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, part)
	}
}

// forget takes partitions out of the fetch session that the request belongs to.
func forget(req *kmsg.FetchRequest, parts map[TP]asked) {
	topics := make(map[[16]byte]int)
	for tp, a := range parts {
		i, ok := topics[tp.ID]
		if !ok {
			i = len(req.ForgottenTopics)
			topics[tp.ID] = i
			topic := kmsg.NewFetchRequestForgottenTopic()
			topic.TopicID, topic.Topic = tp.ID, a.topic
			req.ForgottenTopics = append(req.ForgottenTopics, topic)
		}
		req.ForgottenTopics[i].Partitions = append(req.ForgottenTopics[i].Partitions, tp.Partition)
	}
}

// decode reads what a response says of the partitions that were asked for. It holds no lock: here records are copied.
func decode(resp *kmsg.FetchResponse, iso Isolation, parts map[TP]asked) []fetched {
	var names map[string][16]byte
	if resp.Version < 13 {
		names = make(map[string][16]byte)
		for tp, a := range parts {
			names[a.topic] = tp.ID
		}
	}
	var size int64
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			size += int64(len(resp.Topics[i].Partitions[j].RecordBatches))
		}
	}
	var out []fetched
	for i := range resp.Topics {
		topic := &resp.Topics[i]
		id := topic.TopicID
		if names != nil {
			id = names[topic.Topic]
		}
		for j := range topic.Partitions {
			tp := TP{id, topic.Partitions[j].Partition}
			if a, ok := parts[tp]; ok {
				out = append(out, decodePartition(&topic.Partitions[j], tp, iso, a, size))
			}
		}
	}
	return out
}

func decodePartition(p *kmsg.FetchResponseTopicPartition, tp TP, iso Isolation, a asked, size int64) fetched {
	f := fetched{tp: tp, hw: p.HighWatermark, lso: p.LastStableOffset, logStart: p.LogStartOffset, hint: partitionLeader{-1, -1}}
	if p.ErrorCode != 0 {
		f.err = fmt.Errorf("partition %v: %w", tp, codeError(p.ErrorCode))
		if p.ErrorCode == kerr.NotLeaderForPartition.Code || p.ErrorCode == kerr.FencedLeaderEpoch.Code {
			f.hint = partitionLeader{p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch}
		}
		return f
	}
	batches, err := cut(p.RecordBatches)
	for len(batches) > 0 && batches[0].Last < a.from { // a broker may begin with batches before the offset
		batches = batches[1:]
	}
	end := f.hw
	if iso == ReadCommitted {
		end = f.lso
		txns := make([]abortedTxn, len(p.AbortedTransactions))
		for i, txn := range p.AbortedTransactions {
			txns[i] = abortedTxn{txn.ProducerID, txn.FirstOffset}
		}
		flagAborted(batches, txns)
	}
	for len(batches) > 0 && batches[len(batches)-1].Base >= end {
		batches = batches[:len(batches)-1]
	}
	if len(batches) == 0 {
		if err != nil {
			f.err = fmt.Errorf("partition %v: %w", tp, err)
		}
		f.run = run{from: a.from}
		return f
	}
	f.run = newRun(a.from, batches, size)
	return f
}

// apply takes what a fetch brought for a line, and says whether an end of the log has moved.
func (r *reader) apply(l *line, a asked, f *fetched) bool {
	if a.epoch != l.epoch {
		return false // the leader moved meanwhile: what is cached now is of a newer epoch
	}
	r.succeed(l)
	moved := f.hw > l.hw || f.lso > l.lso || f.logStart > l.logStart
	l.hw, l.lso = max(l.hw, f.hw), max(l.lso, f.lso)
	if f.logStart > l.logStart {
		l.logStart = f.logStart
		l.dropBelow(r.cache, l.logStart)
	}
	if len(f.run.batches) > 0 {
		l.empty = 0
	}
	r.stats.FetchedBytes += batchBytes(f.run.batches)
	l.insert(r.cache, f.run)
	return moved
}
