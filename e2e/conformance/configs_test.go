//go:build e2e

package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// configOp is one operation of IncrementalAlterConfigs.
type configOp struct {
	key   string
	op    kmsg.IncrementalAlterConfigOp
	value *string
}

func setTo(key, value string) configOp {
	return configOp{key, kmsg.IncrementalAlterConfigOpSet, &value}
}
func unset(key string) configOp {
	return configOp{key, kmsg.IncrementalAlterConfigOpDelete, nil}
}

// alterConfigs is an IncrementalAlterConfigs of a group.
func alterConfigs(group string, ops ...configOp) *kmsg.IncrementalAlterConfigsRequest {
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Version = 1
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = groupResource, group
	for _, op := range ops {
		c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		c.Name, c.Op, c.Value = op.key, op.op, op.value
		res.Configs = append(res.Configs, c)
	}
	req.Resources = append(req.Resources, res)
	return req
}

// alterConfig returns the code and message.
func (w *world) alterConfig(group string, validateOnly bool, ops ...configOp) (int16, string) {
	w.Helper()
	req := alterConfigs(group, ops...)
	req.ValidateOnly = validateOnly
	got := ask[*kmsg.IncrementalAlterConfigsResponse](w, w.admin, req).Resources
	if len(got) != 1 || got[0].ResourceName != group || got[0].ResourceType != groupResource {
		w.Fatalf("%+v", got)
	}
	message := ""
	if got[0].ErrorMessage != nil {
		message = *got[0].ErrorMessage
	}
	return got[0].ErrorCode, message
}

// describeConfigs asks for configs of a group, all with nil; documentation and synonyms too.
func (w *world) describeConfigs(group string, keys ...string) kmsg.DescribeConfigsResponseResource {
	w.Helper()
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Version, req.IncludeSynonyms, req.IncludeDocumentation = 4, true, true
	res := kmsg.NewDescribeConfigsRequestResource()
	res.ResourceType, res.ResourceName, res.ConfigNames = groupResource, group, keys
	req.Resources = append(req.Resources, res)
	return ask[*kmsg.DescribeConfigsResponse](w, w.admin, req).Resources[0]
}

// printConfig is all that tells of a config but its documentation: "key=value source type [synonyms]".
func printConfig(c kmsg.DescribeConfigsResponseResourceConfig) string {
	value := func(v *string) string {
		if v == nil {
			return "null"
		}
		return *v
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s=%s %v %v", c.Name, value(c.Value), c.Source, c.ConfigType)
	if c.ReadOnly || c.IsSensitive {
		fmt.Fprintf(&b, " read-only %v sensitive %v", c.ReadOnly, c.IsSensitive)
	}
	for _, s := range c.ConfigSynonyms {
		fmt.Fprintf(&b, " [%s=%s %v]", s.Name, value(s.Value), s.Source)
	}
	return b.String()
}

// shareConfigs are those of share groups, printed, but for what kshare has beyond Kafka.
func (w *world) shareConfigs(group string) []string {
	w.Helper()
	got := w.describeConfigs(group)
	w.code("DescribeConfigs", got.ErrorCode, nil)
	var lines []string
	for _, c := range got.Configs {
		if c.Documentation == nil || *c.Documentation == "" {
			w.Errorf("%s has no documentation", c.Name)
		}
		if (strings.HasPrefix(c.Name, "share.") || strings.HasPrefix(c.Name, "errors.")) && !slices.Contains(allowed().ownConfigs, c.Name) {
			lines = append(lines, printConfig(c))
		}
	}
	slices.Sort(lines)
	return lines
}

func (w *world) sees(group, line string) {
	w.Helper()
	w.until(line, 20*time.Second, func() error {
		if all := w.shareConfigs(group); !slices.Contains(all, line) {
			return errors.New(strings.Join(all, "\n"))
		}
		return nil
	})
}

func TestCheck127_ConfigsOfAGroupAreDescribed(t *testing.T) {
	w := start(t, setup{foreign: true})
	group := w.group + "-untouched"
	want := []string{
		"errors.deadletterqueue.copy.record.enable=false DEFAULT_CONFIG BOOLEAN [errors.deadletterqueue.copy.record.enable=false DEFAULT_CONFIG]",
		"errors.deadletterqueue.topic.name= DEFAULT_CONFIG STRING [errors.deadletterqueue.topic.name= DEFAULT_CONFIG]",
		"share.assignment.interval.ms=0 STATIC_BROKER_CONFIG INT [group.share.assignment.interval.ms=0 STATIC_BROKER_CONFIG] [group.share.assignment.interval.ms=1000 DEFAULT_CONFIG]",
		"share.auto.offset.reset=latest DEFAULT_CONFIG STRING [share.auto.offset.reset=latest DEFAULT_CONFIG]",
		"share.delivery.count.limit=5 DEFAULT_CONFIG INT [group.share.delivery.count.limit=5 DEFAULT_CONFIG]",
		"share.heartbeat.interval.ms=5000 DEFAULT_CONFIG INT [group.share.heartbeat.interval.ms=5000 DEFAULT_CONFIG]",
		"share.isolation.level=read_uncommitted DEFAULT_CONFIG STRING [share.isolation.level=read_uncommitted DEFAULT_CONFIG]",
		"share.partition.max.record.locks=2000 DEFAULT_CONFIG INT [group.share.partition.max.record.locks=2000 DEFAULT_CONFIG]",
		"share.record.lock.duration.ms=30000 DEFAULT_CONFIG INT [group.share.record.lock.duration.ms=30000 DEFAULT_CONFIG]",
		"share.renew.acknowledge.enable=true DEFAULT_CONFIG BOOLEAN [share.renew.acknowledge.enable=true DEFAULT_CONFIG]",
		"share.session.timeout.ms=45000 DEFAULT_CONFIG INT [group.share.session.timeout.ms=45000 DEFAULT_CONFIG]",
	}
	w.is("untouched", strings.Join(w.shareConfigs(group), "\n"), strings.Join(want, "\n"))
	code, message := w.alterConfig(group, false, setTo("share.record.lock.duration.ms", "20000"), setTo("share.isolation.level", "read_committed"))
	if code != 0 {
		t.Fatalf("code %d: %s", code, message)
	}
	w.sees(group, "share.record.lock.duration.ms=20000 GROUP_CONFIG INT [share.record.lock.duration.ms=20000 GROUP_CONFIG] [group.share.record.lock.duration.ms=30000 DEFAULT_CONFIG]")
	w.sees(group, "share.isolation.level=read_committed GROUP_CONFIG STRING [share.isolation.level=read_committed GROUP_CONFIG] [share.isolation.level=read_uncommitted DEFAULT_CONFIG]")
	if got := w.describeConfigs(group, "share.isolation.level", "share.no.such.key").Configs; len(got) != 1 || got[0].Name != "share.isolation.level" {
		t.Errorf("%+v", got)
	}
	code, message = w.alterConfig(group, false, unset("share.record.lock.duration.ms"), unset("share.isolation.level"))
	if code != 0 {
		t.Fatalf("code %d: %s", code, message)
	}
	for _, line := range want {
		w.sees(group, line)
	}
	code, _ = w.alterConfig(group, false, unset("share.record.lock.duration.ms"))
	w.code("deleting what is not set", code, nil)
	code, _ = w.alterConfig(group, false, unset("share.no.such.key"))
	w.code("deleting what is not known", code, nil)
	if got, all := w.describeConfigs(group, []string{}...), w.describeConfigs(group); len(got.Configs) != len(all.Configs) {
		t.Errorf("%d configs without names, %d in all", len(got.Configs), len(all.Configs))
	}
	empty := w.describeConfigs("")
	w.code("no name", empty.ErrorCode, kerr.InvalidRequest)
	w.is("message", w.message(empty.ErrorMessage), "Group name must not be empty")
}

func TestCheck128_BadConfigsAreRefused(t *testing.T) {
	w := start(t, setup{foreign: true})
	const lock = "share.record.lock.duration.ms"
	bad := func(key, value, why string) string {
		return "Invalid value " + value + " for configuration " + key + ": " + why
	}
	badReset := func(value string) string {
		const key = "share.auto.offset.reset"
		return bad(key, value, "Invalid value `"+value+"` for configuration "+key+". The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'.")
	}
	for _, c := range []struct {
		ops     []configOp
		want    *kerr.Error
		message string
	}{
		{[]configOp{setTo("share.nonsense", "1")}, kerr.InvalidConfig, "Unknown group config name: share.nonsense"},
		{[]configOp{setTo(lock, "999")}, kerr.InvalidConfig, bad(lock, "999", "Value must be at least 1000")},
		{[]configOp{setTo(lock, "60001")}, kerr.InvalidConfig, lock + " must be in the range 1000 to 60000 inclusive."},
		{[]configOp{setTo("share.delivery.count.limit", "1")}, kerr.InvalidConfig, bad("share.delivery.count.limit", "1", "Value must be at least 2")},
		{[]configOp{setTo("share.delivery.count.limit", "11")}, kerr.InvalidConfig, "share.delivery.count.limit must be in the range 2 to 10 inclusive."},
		{[]configOp{setTo("share.partition.max.record.locks", "4001")}, kerr.InvalidConfig, "share.partition.max.record.locks must be in the range 100 to 4000 inclusive."},
		{[]configOp{setTo("share.assignment.interval.ms", "-1")}, kerr.InvalidConfig, bad("share.assignment.interval.ms", "-1", "Value must be at least 0")},
		{[]configOp{setTo("share.heartbeat.interval.ms", "15001")}, kerr.InvalidConfig, "share.heartbeat.interval.ms must be in the range 500 to 15000 inclusive."},
		{[]configOp{setTo("share.session.timeout.ms", "60001")}, kerr.InvalidConfig, "share.session.timeout.ms must be in the range 1000 to 60000 inclusive."},
		{[]configOp{setTo("share.session.timeout.ms", "5000")}, kerr.InvalidConfig, "share.session.timeout.ms must be greater than share.heartbeat.interval.ms"},
		{[]configOp{setTo(lock, "soon")}, kerr.InvalidConfig, bad(lock, "soon", "Not a number of type INT")},
		{[]configOp{setTo(lock, "\u00a020000")}, kerr.InvalidConfig, bad(lock, "\u00a020000", "Not a number of type INT")},
		{[]configOp{setTo(lock, "")}, kerr.InvalidConfig, bad(lock, "", "Not a number of type INT")},
		{[]configOp{setTo("share.renew.acknowledge.enable", "perhaps")}, kerr.InvalidConfig, bad("share.renew.acknowledge.enable", "perhaps", "Expected value to be either true or false")},
		{[]configOp{setTo("share.isolation.level", "serializable")}, kerr.InvalidConfig, bad("share.isolation.level", "serializable", "String must be one of: read_committed, read_uncommitted")},
		{[]configOp{setTo("share.auto.offset.reset", "sometimes")}, kerr.InvalidConfig, badReset("sometimes")},
		{[]configOp{setTo("share.auto.offset.reset", "by_duration:-PT1H")}, kerr.InvalidConfig, badReset("by_duration:-PT1H")},
		{[]configOp{setTo("share.auto.offset.reset", "by_duration:yesterday")}, kerr.InvalidConfig, badReset("by_duration:yesterday")},
		{[]configOp{setTo("errors.deadletterqueue.topic.name", "__dlq")}, kerr.InvalidConfig, "errors.deadletterqueue.topic.name: DLQ topic name must not start with '__'"},
		{[]configOp{{lock, kmsg.IncrementalAlterConfigOpAppend, kmsg.StringPtr("20000")}}, kerr.InvalidConfig, "Can't APPEND to key " + lock + " because its type is not LIST."},
		{[]configOp{{lock, kmsg.IncrementalAlterConfigOpSubtract, kmsg.StringPtr("20000")}}, kerr.InvalidConfig, "Can't SUBTRACT to key " + lock + " because its type is not LIST."},
		{[]configOp{{"share.nonsense", kmsg.IncrementalAlterConfigOpAppend, kmsg.StringPtr("1")}}, kerr.InvalidConfig, "Can't APPEND to key share.nonsense because its type is not LIST."},
		{[]configOp{{lock, kmsg.IncrementalAlterConfigOpSet, nil}}, kerr.InvalidRequest, "Null value not supported for : " + lock},
		{[]configOp{setTo(lock, "20000"), unset(lock)}, kerr.InvalidRequest, "Error due to duplicate config keys"},
		{[]configOp{setTo(lock, "20000"), setTo("share.delivery.count.limit", "99")}, kerr.InvalidConfig, "share.delivery.count.limit must be in the range 2 to 10 inclusive."}, // all or nothing
	} {
		what := fmt.Sprint(c.ops)
		for i, op := range c.ops {
			value := "null"
			if op.value != nil {
				value = *op.value
			}
			if i == 0 {
				what = ""
			}
			what += fmt.Sprintf("%v %s=%s ", op.op, op.key, value)
		}
		code, message := w.alterConfig(w.group+"-bad", false, c.ops...)
		w.code(what, code, c.want)
		if message != c.message {
			t.Errorf("%s: %q, want %q", what, message, c.message)
		}
	}
	code, message := w.alterConfig("", false, setTo(lock, "20000"))
	w.code("no name", code, kerr.InvalidRequest)
	w.is("message", message, "Default group resources are not allowed.")
	req := alterConfigs(w.group+"-bad", setTo(lock, "20000"))
	req.Resources = append(req.Resources, req.Resources[0])
	for _, r := range ask[*kmsg.IncrementalAlterConfigsResponse](w, w.admin, req).Resources {
		w.code("one resource twice", r.ErrorCode, kerr.InvalidRequest)
		w.is("message", w.message(r.ErrorMessage), "Each resource must appear at most once.")
	}
	code, message = w.alterConfig(w.group+"-bad", true, setTo(lock, "20000"))
	if code != 0 {
		t.Fatalf("validate only: code %d %s", code, message)
	}
	code, _ = w.alterConfig(w.group+"-bad", true, setTo(lock, "1"))
	w.code("validate only, out of range", code, kerr.InvalidConfig)
	w.until("a later change", 20*time.Second, func() error {
		if code, message := w.alterConfig(w.group+"-bad", false, setTo("share.delivery.count.limit", "9")); code != 0 {
			return errors.New(message)
		}
		return nil
	})
	w.sees(w.group+"-bad", "share.delivery.count.limit=9 GROUP_CONFIG INT [share.delivery.count.limit=9 GROUP_CONFIG] [group.share.delivery.count.limit=5 DEFAULT_CONFIG]")
	w.sees(w.group+"-bad", "share.record.lock.duration.ms=30000 DEFAULT_CONFIG INT [group.share.record.lock.duration.ms=30000 DEFAULT_CONFIG]")
	w.within("legacy AlterConfigs", func(w *world) {
		req := kmsg.NewPtrAlterConfigsRequest()
		req.Version = 2
		res := kmsg.NewAlterConfigsRequestResource()
		res.ResourceType, res.ResourceName = groupResource, w.group+"-bad"
		c := kmsg.NewAlterConfigsRequestResourceConfig()
		c.Name, c.Value = lock, kmsg.StringPtr("20000")
		res.Configs = append(res.Configs, c)
		req.Resources = append(req.Resources, res)
		w.code("AlterConfigs", ask[*kmsg.AlterConfigsResponse](w, w.admin, req).Resources[0].ErrorCode, nil)
		w.sees(w.group+"-bad", "share.record.lock.duration.ms=20000 GROUP_CONFIG INT [share.record.lock.duration.ms=20000 GROUP_CONFIG] [group.share.record.lock.duration.ms=30000 DEFAULT_CONFIG]")
		w.sees(w.group+"-bad", "share.delivery.count.limit=5 DEFAULT_CONFIG INT [group.share.delivery.count.limit=5 DEFAULT_CONFIG]")
	})
}

// Where a broker knows no configs of groups, and so no ACLs for them, those for the cluster's configs decide; it is one
// rule for all groups then, and the other tests are not to feel it.
func TestCheck129_ConfigsThatMayNotBeSeenOrChanged(t *testing.T) {
	w := start(t, setup{foreign: true, guarded: true, alone: true})
	denied, open := w.group+"-denied", w.group+"-open"
	kind, name := kmsg.ACLResourceTypeGroup, denied
	if allowed().clusterConfigACLs {
		kind, name, open = kmsg.ACLResourceTypeCluster, "kafka-cluster", ""
	}
	describe := kmsg.NewPtrDescribeConfigsRequest()
	describe.Version = 4
	alter := kmsg.NewPtrIncrementalAlterConfigsRequest()
	alter.Version, alter.ValidateOnly = 1, true
	add := func(kind kmsg.ConfigResourceType, name, key, value string) {
		res := kmsg.NewDescribeConfigsRequestResource()
		res.ResourceType, res.ResourceName = kind, name
		describe.Resources = append(describe.Resources, res)
		change := alterConfigs(name, setTo(key, value)).Resources[0]
		change.ResourceType = kind
		alter.Resources = append(alter.Resources, change)
	}
	add(groupResource, denied, "share.record.lock.duration.ms", "20000")
	add(kmsg.ConfigResourceTypeTopic, w.main.name, "retention.ms", "1000000")
	if open != "" {
		add(groupResource, open, "share.record.lock.duration.ms", "20000")
	}
	described := func() map[string]int16 {
		codes := map[string]int16{}
		for _, r := range ask[*kmsg.DescribeConfigsResponse](w, w.admin, describe).Resources {
			codes[r.ResourceName] = r.ErrorCode
			if (r.ErrorCode == 0) != (len(r.Configs) > 0) {
				t.Errorf("code %d with %d configs", r.ErrorCode, len(r.Configs))
			}
			if want := map[int16]string{kerr.GroupAuthorizationFailed.Code: "Group authorization failed."}[r.ErrorCode]; r.ResourceType == groupResource &&
				(r.ErrorMessage == nil || *r.ErrorMessage != want) {
				t.Errorf("code %d of %s: message %v, want %q", r.ErrorCode, r.ResourceName, r.ErrorMessage, want)
			}
		}
		return codes
	}
	changed := func() map[string]int16 {
		codes := map[string]int16{}
		for _, r := range ask[*kmsg.IncrementalAlterConfigsResponse](w, w.admin, alter).Resources {
			codes[r.ResourceName] = r.ErrorCode
			if r.ErrorCode != 0 && (r.ErrorMessage == nil || *r.ErrorMessage != "Group authorization failed.") {
				t.Errorf("code %d of %s: message %v", r.ErrorCode, r.ResourceName, r.ErrorMessage)
			}
		}
		return codes
	}
	for what, c := range map[string]struct {
		op   kmsg.ACLOperation
		send func() map[string]int16
	}{"DescribeConfigs": {kmsg.ACLOperationDescribeConfigs, described}, "IncrementalAlterConfigs": {kmsg.ACLOperationAlterConfigs, changed}} {
		for resource, code := range c.send() {
			w.code(what+" before, "+resource, code, nil)
		}
		w.deny(kind, name, c.op)
		w.until("denial", 20*time.Second, func() error {
			if c.send()[denied] == 0 {
				return errors.New("still allowed")
			}
			return nil
		})
		for resource, code := range c.send() {
			if resource == denied {
				w.code(what, code, kerr.GroupAuthorizationFailed)
			} else {
				w.code(what+" of "+resource, code, nil)
			}
		}
		w.allow(kind, name, c.op)
		w.until("permission", 20*time.Second, func() error { return kerr.ErrorForCode(c.send()[denied]) })
	}
}

// listConfigs is ListConfigResources v1.
func (w *world) listConfigs(types ...int8) (names []string, code int16) {
	w.Helper()
	req := kmsg.NewPtrListConfigResourcesRequest()
	req.Version, req.ResourceTypes = 1, types
	resp := ask[*kmsg.ListConfigResourcesResponse](w, w.admin, req)
	for _, r := range resp.ConfigResources {
		names = append(names, fmt.Sprintf("%d %s", r.Type, r.Name))
	}
	return names, resp.ErrorCode
}

func TestCheck130_GroupsWithConfigsAreListed(t *testing.T) {
	w := start(t, setup{foreign: true})
	never, bare := w.group+"-never", w.group+"-bare"
	w.set(never, "share.record.lock.duration.ms", "20000")
	w.join(bare, w.main)
	has := func(name string, types ...int8) error {
		names, code := w.listConfigs(types...)
		if code != 0 || !slices.Contains(names, name) {
			return fmt.Errorf("code %d, %v", code, names)
		}
		return nil
	}
	for _, group := range []string{w.group, never} {
		w.until(group, 20*time.Second, func() error { return has("32 "+group, 32) })
		w.until(group, 20*time.Second, func() error { return has("32 " + group) })
	}
	names, _ := w.listConfigs(32)
	for _, name := range names {
		if !strings.HasPrefix(name, "32 ") || name == "32 "+bare {
			t.Errorf("listed: %s", name)
		}
	}
	if code, message := w.alterConfig(never, false, unset("share.record.lock.duration.ms")); code != 0 {
		t.Fatalf("code %d %s", code, message)
	}
	w.until("no configs any more", 20*time.Second, func() error {
		if has("32 "+never, 32) == nil {
			return errors.New("listed")
		}
		return nil
	})
	_, code := w.listConfigs(99)
	w.code("type 99", code, kerr.UnsupportedVersion)
}
