//go:build e2e

package conformance

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"kshare/e2e/client"
)

// What admin clients are answered in a history of calls is compared with what Kafka 4.4.0 answers them, which is kept in
// testdata/admin: for Kafka's own AdminClient, of KAFKA_NEW, and for kadm.

func TestJavaAdminClientIsAnsweredAsRecorded(t *testing.T) {
	w := enter(t, setup{foreign: true, partitions: 2})
	d, err := client.Java{Suite: suite, Version: suite.Version("KAFKA_NEW")}.Launch("admin-" + w.main.name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Kill)
	h := w.adminHistory(func(call string, args ...string) ([]string, error) { return d.Admin(w.tg.bootstrap, call, args...) })
	h.missing = map[string][2]string{
		"describeClassicGroups":  {"GROUP: GroupIdNotFoundException: The group id does not exist.", "GROUP: Classic Dead protocol '' members 0"},
		"describeConsumerGroups": {"GROUP: GroupIdNotFoundException: Group GROUP is not a consumer group.", "GROUP: Classic Dead assignor '' members 0"},
	}
	h.groups()
	h.wrongTypes()
	h.listings()
	h.configs()
	h.end()
	h.tr.compareIn("admin", "java")
}

func TestKadmIsAnsweredAsRecorded(t *testing.T) {
	w := enter(t, setup{foreign: true, partitions: 2})
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.tg.bootstrap), kgo.ClientID("admin"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	h := w.adminHistory(kadmCaller(cl))
	h.missing = map[string][2]string{"describeClassicGroups": {"GROUP: GROUP_ID_NOT_FOUND", "GROUP: Dead protocol '' members 0"}}
	h.groups()
	h.wrongTypes()
	h.listings()
	h.coordinators()
	h.do("listConfigResources", "GROUP")
	h.end()
	h.tr.compareIn("admin", "kadm")
}

// adminHistory plays a history by an admin client. Calls have the names of AdminClient's methods, as in AdminSide.java.
type adminHistory struct {
	w    *world
	tr   *transcript
	call func(call string, args ...string) ([]string, error)
	// missing is, by call, what tells that there is no such group, and what does where DescribeGroups cannot (see
	// differences.deadGroups).
	missing map[string][2]string
}

func (w *world) adminHistory(call func(call string, args ...string) ([]string, error)) *adminHistory {
	return &adminHistory{w: w, tr: w.transcript(), call: call}
}

// do books one call and what came of it.
func (h *adminHistory) do(call string, args ...string) {
	h.w.Helper()
	fmt.Fprintln(&h.tr.out, "$", strings.Join(h.tr.print(call+" "+strings.Join(args, " ")), " "))
	lines, err := h.call(call, args...)
	if err != nil {
		h.w.Fatal(err)
	}
	for _, line := range h.tr.print(strings.Join(lines, "\n")) {
		fmt.Fprintln(&h.tr.out, line)
	}
	h.tr.out.WriteByte('\n')
}

// doMissing is do for a call that does not find a group.
func (h *adminHistory) doMissing(call, group string) {
	h.w.Helper()
	m, ok := h.missing[call]
	if !ok || !allowed().deadGroups {
		h.do(call, group)
		return
	}
	lines, err := h.call(call, group)
	if err != nil {
		h.w.Fatal(err)
	}
	h.w.is(call, strings.Join(h.tr.print(strings.Join(lines, "\n")), "\n"), m[1])
	fmt.Fprintf(&h.tr.out, "$ %s %s\n%s\n\n", call, strings.Join(h.tr.print(group), " "), m[0])
}

// describes is describeShareGroups of a group that exists, whose epochs are not the same in every run: they must be what
// the wire says.
func (h *adminHistory) describes(group string) {
	h.w.Helper()
	d := h.w.describeGroup(group)
	was := h.tr.columns
	h.tr.columns = slices.Concat([]string{fmt.Sprintf("group epoch %d, assignment epoch %d,", d.GroupEpoch, d.AssignmentEpoch),
		"group epoch EPOCH, assignment epoch EPOCH,"}, was)
	for _, m := range d.Members {
		h.tr.columns = append(h.tr.columns, fmt.Sprintf("member MEMBER epoch %d ", m.MemberEpoch), "member MEMBER epoch EPOCH ")
	}
	h.do("describeShareGroups", group)
	h.tr.columns = was
}

// groups is the life of a group up to its being deleted.
func (h *adminHistory) groups() {
	w, tr, group, first := h.w, h.tr, h.w.group, h.w.main.name
	w.Helper()
	w.until("coordinator", 60*time.Second, func() error { // a new broker has none before it is asked for
		w.findCoordinator(0, group)
		err := kerr.ErrorForCode(w.describeGroup(group).ErrorCode)
		if !errors.Is(err, kerr.GroupIDNotFound) {
			return fmt.Errorf("described: %w", err)
		}
		return nil
	})
	w.produceEach(w.p(0), 8, 1)
	w.produceEach(w.p(1), 4, 1)
	second := w.createTopic(first+"-2", 1, nil)
	w.produceEach(second.at(0), 3, 1)
	tr.call(second.name, "SECOND")
	offsets := func() {
		w.Helper()
		h.do("listShareGroupOffsets", group)
	}
	one := func(t string, p, offset int) string { return fmt.Sprintf("%s:%d=%d", t, p, offset) }

	tr.say("before there is a group")
	h.do("describeShareGroups", group)
	offsets()
	h.do("listShareGroupOffsets", group, first+":0")
	h.do("deleteShareGroupOffsets", group, first)
	h.do("deleteShareGroups", group)
	h.do("listGroups", "type=share")

	tr.say("one member, which has accepted 0-3 and 5 of partition 0")
	b := w.join(group, w.main, second)
	tr.call(b.id, "MEMBER")
	m := w.member()
	m.takes("0-7x1", w.p(0))
	m.ack(nil, w.p(0), accept(0, 3))
	m.ack(nil, w.p(0), accept(5, 5)) // with this a broker writes down where the first one has moved the start to
	w.lagBecomes(w.p(0), 3)
	h.describes(group)
	h.do("describeShareGroups", "no-"+group)
	h.do("describeShareGroups", "")
	h.do("listGroups", "type=share", "state=Stable")
	h.do("listGroups", "type=share", "state=Empty")
	offsets()
	h.do("listShareGroupOffsets", group, first+":0", first+":1", "no-"+first+":0", second.name+":0")
	h.do("alterShareGroupOffsets", group, one(first, 0, 2))
	h.do("deleteShareGroupOffsets", group, first)
	h.do("deleteShareGroups", group)

	tr.say("the member is gone")
	b.leaves()
	m.c.Close()
	h.describes(group)
	h.do("listGroups", "type=share", "state=Stable")
	h.do("listGroups", "type=share", "state=Empty")
	offsets()
	h.do("listShareGroupOffsets", group, first+":1", first+":7") // a broker looks for the latter longer than the member would live

	tr.say("offsets are altered")
	h.do("alterShareGroupOffsets", group, one(first, 0, 2), one(first, 1, 1))
	offsets()
	h.do("alterShareGroupOffsets", group, one(first, 0, 99), one(second.name, 0, 0))
	offsets()
	h.do("alterShareGroupOffsets", group, one(first, 0, 3), one(first, 7, 0), one("no-"+first, 0, 0))
	offsets()
	h.do("alterShareGroupOffsets", group+"-new", one(first, 0, 1))
	h.describes(group + "-new")
	h.do("listShareGroupOffsets", group+"-new")

	tr.say("offsets are deleted")
	h.do("deleteShareGroupOffsets", group, second.name, "no-"+first)
	h.do("deleteShareGroupOffsets", group, second.name)
	h.do("deleteShareGroupOffsets", "no-"+group, first)
	offsets()
}

// wrongTypes has calls for other kinds of groups name a share group.
func (h *adminHistory) wrongTypes() {
	h.tr.say("calls for other kinds of groups")
	h.doMissing("describeClassicGroups", h.w.group)
	h.doMissing("describeConsumerGroups", h.w.group)
	h.do("listConsumerGroupOffsets", h.w.group)
	classic, consumer := h.w.classicGroup(), h.w.consumerGroup()
	h.do("describeShareGroups", classic, consumer)
	h.do("alterShareGroupOffsets", classic, h.w.main.name+":0=0")
	h.do("deleteShareGroupOffsets", consumer, h.w.main.name)
	h.do("describeClassicGroups", classic)
	h.do("describeConsumerGroups", consumer)
}

// listings has share groups among others, one with a member and one without.
func (h *adminHistory) listings() {
	h.tr.say("groups of all kinds")
	h.w.join(h.w.group+"-joined", h.w.main)
	for _, filters := range [][]string{nil, {"type=share"}, {"type=share", "type=classic"}, {"type=consumer"}, {"type=share", "state=Stable"},
		{"state=Empty"}, {"state=Empty", "state=Stable"}, {"protocol=share"}} {
		h.do("listGroups", filters...)
	}
}

// coordinators is what only kadm has a call for.
func (h *adminHistory) coordinators() {
	h.tr.say("coordinators of share-partitions")
	id := base64.RawURLEncoding.EncodeToString(h.w.main.id[:])
	h.tr.call(id, "TOPIC-ID")
	h.do("findShareCoordinators", fmt.Sprintf("%s:%s:%d", h.w.group, id, 0), h.w.group+"-joined", fmt.Sprintf("%s:%s:p", h.w.group, id))
}

// configs is what only AdminClient has calls for.
func (h *adminHistory) configs() {
	group := h.w.group + "-configs"
	alter := func(changes ...string) { h.do("incrementalAlterConfigs", append([]string{group}, changes...)...) }
	h.tr.say("nothing is configured")
	h.do("describeConfigs", group)
	h.tr.say("configs are set")
	alter("validateOnly", "share.record.lock.duration.ms=20000")
	h.do("listConfigResources", "GROUP")
	alter("share.record.lock.duration.ms=20000", "share.auto.offset.reset=earliest", "share.isolation.level=read_committed")
	h.w.shows(group, "share.isolation.level", "read_committed")
	h.do("describeConfigs", group)
	h.do("listConfigResources", "GROUP")
	h.tr.say("configs are refused")
	alter("share.record.lock.duration.ms=1")
	alter("validateOnly", "share.record.lock.duration.ms=1")
	alter("share.nonsense=1", "share.record.lock.duration.ms=30000")
	alter("share.delivery.count.limit=many")
	alter("share.isolation.level+read_committed")
	alter("share.session.timeout.ms=5000", "share.heartbeat.interval.ms=5000")
	h.do("incrementalAlterConfigs", "", "share.isolation.level=read_committed")
	h.do("describeConfigs", "")
	h.tr.say("configs are deleted")
	alter("validateOnly", "share.isolation.level")
	alter("share.record.lock.duration.ms", "share.auto.offset.reset", "share.delivery.count.limit")
	h.w.shows(group, "share.auto.offset.reset", "latest")
	h.do("describeConfigs", group)
	alter("share.isolation.level")
	h.w.shows(group, "share.isolation.level", "read_uncommitted")
	h.do("describeConfigs", group)
	h.do("listConfigResources", "GROUP")
}

// end deletes groups.
func (h *adminHistory) end() {
	group := h.w.group
	h.tr.say("groups are deleted")
	h.do("deleteShareGroups", group, group+"-joined", "no-"+group)
	h.do("describeShareGroups", group)
	h.do("listShareGroupOffsets", group)
	h.do("deleteShareGroups", group)
	h.do("deleteShareGroups", group+"-new", group+"-classic")
	h.do("listGroups")
}
