//go:build e2e

package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"kshare/e2e/harness"
)

// Franz is franz-go's share consumer, in this process.
type Franz struct{ Suite *harness.Suite }

// Name implements Kind.
func (Franz) Name() string { return "franz" }

// RecordLimit implements Kind.
func (Franz) RecordLimit() bool { return true }

// Start implements Kind. The client has one fetch under way only while a poll asks
// for it, as the others: else it would hold records that no scenario knows of.
func (f Franz) Start(c Config) (ShareClient, error) {
	log, err := os.Create(filepath.Join(f.Suite.Dir, "client-"+c.Name+".log"))
	if err != nil {
		return nil, err
	}
	s := &franzShare{explicit: c.Explicit, log: log, failed: map[int32]string{}, held: map[[2]int64]*kgo.Record{}}
	opts := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(c.Bootstrap, ",")...),
		kgo.ClientID(c.Name),
		kgo.ConsumeTopics(c.Topic),
		kgo.ShareGroup(c.Group),
		kgo.ShareAckCallback(s.acked),
		kgo.MaxConcurrentFetches(0),
		kgo.DisableClientMetrics(),
		kgo.WithLogger(kgo.BasicLogger(log, kgo.LogLevelInfo, func() string { return time.Now().Format("15:04:05.000 ") })),
	}
	if c.MaxRecords > 0 {
		opts = append(opts, kgo.ShareMaxRecords(int32(c.MaxRecords)))
	}
	if c.Strict {
		opts = append(opts, kgo.ShareMaxRecordsStrict())
	}
	if c.Login != nil {
		login, err := c.Login.Franz()
		if err != nil {
			return nil, err
		}
		opts = append(opts, login...)
	}
	if s.cl, err = kgo.NewClient(opts...); err != nil {
		return nil, err
	}
	return s, nil
}

type franzShare struct {
	cl       *kgo.Client
	explicit bool
	log      *os.File
	held     map[[2]int64]*kgo.Record // polled and not acknowledged, by partition and offset

	mu     sync.Mutex
	failed map[int32]string

	auditStop func()
	auditDone chan error
}

func (s *franzShare) acked(_ *kgo.Client, results kgo.ShareAckResults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range results {
		if r.Err != nil {
			s.failed[r.Partition] = r.Err.Error()
		}
	}
}

// Poll implements ShareClient.
func (s *franzShare) Poll(timeout time.Duration) ([]Record, error) {
	rs, err := s.poll(timeout)
	if err != nil {
		return nil, err
	}
	records := make([]Record, len(rs))
	for i, r := range rs {
		records[i] = Record{Partition: r.Partition, Offset: r.Offset, Count: int(r.DeliveryCount()), Key: string(r.Key)}
		s.held[[2]int64{int64(r.Partition), r.Offset}] = r
	}
	return records, nil
}

func (s *franzShare) poll(timeout time.Duration) ([]*kgo.Record, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	fetches := s.cl.PollFetches(ctx)
	for _, e := range fetches.Errors() {
		if !errors.Is(e.Err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("poll %s-%d: %w", e.Topic, e.Partition, e.Err)
		}
	}
	return fetches.Records(), nil
}

var franzAcks = map[AckType]kgo.AckStatus{Accept: kgo.AckAccept, Release: kgo.AckRelease, Reject: kgo.AckReject}

// Ack implements ShareClient.
func (s *franzShare) Ack(r Record, how AckType) error {
	rec := s.held[[2]int64{int64(r.Partition), r.Offset}]
	if rec == nil {
		return fmt.Errorf("not delivered: %v", r)
	}
	rec.Ack(franzAcks[how])
	return nil
}

// Commit implements ShareClient. franz-go has no mode: what was not acknowledged is
// accepted here for an implicit consumer, and stays as it is for an explicit one.
func (s *franzShare) Commit() (map[int32]string, error) {
	if !s.explicit {
		s.cl.MarkAcks(kgo.AckAccept)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := s.cl.FlushAcks(ctx); err != nil {
		return nil, err
	}
	clear(s.held)
	s.mu.Lock()
	defer s.mu.Unlock()
	failed := s.failed
	s.failed = map[int32]string{}
	return failed, nil
}

// StartAudit implements ShareClient.
func (s *franzShare) StartAudit(rules AuditRules, sink func(Cycle)) error {
	stop := make(chan struct{})
	done := make(chan error, 1)
	s.auditStop, s.auditDone = func() { close(stop) }, done
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if c, ok := s.cycle(rules); ok {
				sink(c)
			}
		}
	}()
	return nil
}

func (s *franzShare) cycle(rules AuditRules) (Cycle, bool) {
	records, err := s.poll(200 * time.Millisecond)
	if err != nil {
		return Cycle{PollError: err.Error()}, true
	}
	if len(records) == 0 {
		return Cycle{}, false
	}
	c := Cycle{PolledAt: time.Now().UnixMilli()}
	if rules.Hold > 0 {
		time.Sleep(rules.Hold) // the consumer's work
	}
	for _, r := range records {
		count := int(r.DeliveryCount())
		c.Delivered = appendRun(c.Delivered, r, count)
		how := Accept
		if s.explicit {
			switch {
			case rules.RejectEvery > 0 && r.Offset%rules.RejectEvery == rules.RejectEvery-1:
				how = Reject
			case rules.ReleaseEvery > 0 && count == 1 && r.Offset%rules.ReleaseEvery == 0:
				how = Release
			}
			r.Ack(franzAcks[how])
		}
		c.Acked = appendRun(c.Acked, r, ackTypeIDs[how])
	}
	failed, err := s.Commit()
	c.AckedAt = time.Now().UnixMilli()
	c.Errors = map[string]string{}
	for p, e := range failed {
		c.Errors[fmt.Sprint(p)] = e
	}
	if err != nil {
		c.Errors["*"] = err.Error()
	}
	return c, true
}

func appendRun(runs []Run, r *kgo.Record, value int) []Run {
	if n := len(runs) - 1; n >= 0 && runs[n].Partition == r.Partition && runs[n].Last == r.Offset-1 && runs[n].Value == value {
		runs[n].Last = r.Offset
		return runs
	}
	return append(runs, Run{Partition: r.Partition, First: r.Offset, Last: r.Offset, Value: value})
}

// StopAudit implements ShareClient.
func (s *franzShare) StopAudit() error {
	s.auditStop()
	select {
	case err := <-s.auditDone:
		return err
	case <-time.After(callTimeout):
		return errors.New("the audit did not stop")
	}
}

// Close implements ShareClient.
func (s *franzShare) Close() error {
	s.cl.Close()
	return nil
}

// Kill implements ShareClient. A client in this process cannot die; closing it is
// the nearest.
func (s *franzShare) Kill() { s.cl.Close() }
