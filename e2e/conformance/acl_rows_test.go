//go:build e2e

package conformance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/harness"
)

type namedRow struct {
	name string
	make func(w *world) aclRow
}

const (
	groupDenied   = "GROUP_AUTHORIZATION_FAILED"
	topicDenied   = "TOPIC_AUTHORIZATION_FAILED"
	clusterDenied = "CLUSTER_AUTHORIZATION_FAILED"

	opRead            = kmsg.ACLOperationRead
	opDescribe        = kmsg.ACLOperationDescribe
	opDelete          = kmsg.ACLOperationDelete
	opAlter           = kmsg.ACLOperationAlter
	opDescribeConfigs = kmsg.ACLOperationDescribeConfigs
	opAlterConfigs    = kmsg.ACLOperationAlterConfigs
	opClusterAction   = kmsg.ACLOperationClusterAction
)

// aclRows is section 8 in its order, and what is refused because the group is a share group.
var aclRows = slices.Concat([]namedRow{
	{"FindCoordinator of a group", findGroupRow},
	{"FindCoordinator of share state", findShareRow},
	{"ListGroups by the group", listGroupsRow},
	{"ListGroups by the cluster", listGroupsClusterRow},
	{"ShareGroupHeartbeat", heartbeatRow},
	{"ShareGroupDescribe", describeRow},
	{"ShareFetch", fetchRow},
	{"ShareFetch with acknowledgements", fetchAckRow},
	{"ShareAcknowledge", acknowledgeRow},
	{"DescribeShareGroupOffsets by name", describeOffsetsRow},
	{"DescribeShareGroupOffsets of all", describeAllOffsetsRow},
	{"AlterShareGroupOffsets", alterOffsetsRow},
	{"DeleteShareGroupOffsets", deleteOffsetsRow},
	{"DeleteGroups", deleteGroupsRow},
	{"DescribeConfigs of a group", describeConfigsRow},
	{"IncrementalAlterConfigs of a group", incrementalAlterRow},
	{"AlterConfigs of a group", alterConfigsRow},
	{"ListConfigResources", listConfigsRow},
}, shareStateRows(), wrongTypeRows())

func findGroupRow(w *world) aclRow {
	return aclRow{
		grants:  []harness.Grant{onGroup(opDescribe, w.group)},
		without: []string{"Coordinators.ErrorCode " + groupDenied}, with: "found",
		implied: [][]harness.Grant{{onGroup(opRead, w.group)}, {onGroup(opDelete, w.group)}},
		ask: func(w *world, c *conn) string {
			req := kmsg.NewPtrFindCoordinatorRequest()
			req.Version, req.CoordinatorKeys = 5, []string{w.group}
			resp, failed := attempt(w, c, req)
			if k := resp.(*kmsg.FindCoordinatorResponse).Coordinators[0]; k.Port > 0 {
				return told(failed, "found")
			}
			return failed
		},
	}
}

func findShareRow(w *world) aclRow {
	return aclRow{
		grants:  []harness.Grant{onCluster(opClusterAction)},
		without: []string{"Coordinators.ErrorCode " + clusterDenied}, with: "found",
		ask: func(w *world, c *conn) string {
			req := kmsg.NewPtrFindCoordinatorRequest()
			req.Version, req.CoordinatorType, req.CoordinatorKeys = 6, 2, []string{w.group + ":" + base64ID(w.main.id) + ":0"}
			resp, failed := attempt(w, c, req)
			if k := resp.(*kmsg.FindCoordinatorResponse).Coordinators[0]; k.Port > 0 {
				return told(failed, "found")
			}
			return failed
		},
	}
}

func listGroupsRow(w *world) aclRow {
	return aclRow{
		grants:  []harness.Grant{onGroup(opDescribe, w.group)},
		without: []string{"not listed"}, with: "listed",
		implied: [][]harness.Grant{{onGroup(opRead, w.group)}, {onGroup(opDelete, w.group)}},
		ask:     askList,
	}
}

func listGroupsClusterRow(*world) aclRow {
	return aclRow{
		grants:  []harness.Grant{onCluster(opDescribe)},
		without: []string{"not listed"}, with: "listed",
		implied: [][]harness.Grant{{onCluster(opAlter)}},
		ask:     askList,
	}
}

func askList(w *world, c *conn) string {
	req := kmsg.NewPtrListGroupsRequest()
	req.Version = 5
	resp, failed := attempt(w, c, req)
	for _, g := range resp.(*kmsg.ListGroupsResponse).Groups {
		if g.Group == w.group {
			return told(failed, "listed")
		}
	}
	return told(failed, "not listed")
}

func heartbeatRow(w *world) aclRow {
	other := w.createTopic(w.main.name+"-other", 1, nil)
	members := func() int { return len(w.describeGroup(w.group).Members) }
	return aclRow{
		grants: []harness.Grant{onGroup(opRead, w.group), onTopic(opDescribe, w.main), onTopic(opDescribe, other)},
		without: []string{"ErrorCode " + groupDenied + "; no member",
			"ErrorCode " + topicDenied + "; no member", "ErrorCode " + topicDenied + "; no member"},
		with: "a member",
		implied: [][]harness.Grant{{onGroup(opRead, w.group), onTopic(opRead, w.main), onTopic(kmsg.ACLOperationWrite, other)},
			{onGroup(opRead, w.group), onTopic(opDelete, w.main), onTopic(opAlter, other)}},
		ask: func(w *world, c *conn) string {
			before := members()
			req := kmsg.NewPtrShareGroupHeartbeatRequest()
			req.Version, req.GroupID, req.MemberID = 1, w.group, w.unique()
			req.SubscribedTopicNames = []string{w.main.name, other.name}
			_, failed := attempt(w, c, req)
			if members() == before {
				return told(failed, "no member")
			}
			b := &beater{w: w, c: w.admin, group: w.group, id: req.MemberID, epoch: -1}
			b.beats(unchanged)
			return told(failed, "a member")
		},
	}
}

func describeRow(w *world) aclRow {
	return aclRow{
		grants: []harness.Grant{onGroup(opDescribe, w.group), onTopic(opDescribe, w.main)},
		without: []string{"Groups.ErrorCode " + groupDenied + "; no members",
			"Groups.ErrorCode " + topicDenied + "; no members"},
		with:    "members",
		implied: [][]harness.Grant{{onGroup(opRead, w.group), onTopic(opRead, w.main)}},
		ask: func(w *world, c *conn) string {
			(&beater{w: w, c: w.admin, group: w.group, id: "always"}).subscribes(w.main)
			req := kmsg.NewPtrShareGroupDescribeRequest()
			req.Version, req.GroupIDs = 1, []string{w.group}
			resp, failed := attempt(w, c, req)
			if len(resp.(*kmsg.ShareGroupDescribeResponse).Groups[0].Members) > 0 {
				return told(failed, "members")
			}
			return told(failed, "no members")
		},
	}
}

func readers(w *world) []harness.Grant {
	return []harness.Grant{onGroup(opRead, w.group), onTopic(opRead, w.main)}
}

func fetchRow(w *world) aclRow {
	// Whoever may fetch gets all that nobody has got before, so that a refused fetch would be seen to have taken some.
	produced, taken := int64(0), int64(0)
	return aclRow{
		grants:  readers(w),
		without: []string{"ErrorCode " + groupDenied + "; no records", "Topics.Partitions.ErrorCode " + topicDenied + "; no records"},
		with:    "all records",
		ask: func(w *world, c *conn) string {
			w.produce(w.p(0), 1)
			produced++
			m := w.member()
			m.c = c
			var failed, got string
			w.until("all records, or a refusal", requestTimeout, func() error {
				var resp kmsg.Response
				if resp, failed = attempt(w, c, m.fetching(w.p(0))); failed != "" {
					return nil
				}
				f := fetched{w: w, ShareFetchResponse: resp.(*kmsg.ShareFetchResponse)}
				m.advance(m.epoch)
				got = joinRanges(strings.Fields(got + " " + f.acquired(w.p(0))))
				if want := fmt.Sprintf("%d-%dx1", taken, produced-1); got != want {
					return fmt.Errorf("acquired %q, want %q", got, want)
				}
				return nil
			})
			if got == "" {
				return told(failed, "no records")
			}
			taken = produced
			m.c = w.dial(w.node)
			m.epoch = 0
			return told(failed, "all records")
		},
	}
}

// holds makes a member of the one who may do everything hold two new records.
func holds(w *world) (m *member, first int64) {
	w.Helper()
	w.produce(w.p(0), 2)
	m = w.member()
	fmt.Sscanf(m.takeBy(soon, w.p(0)), "%d-", &first)
	return m, first
}

// soon has a fetch not wait long, for a broker may sleep through what it waits for.
func soon(req *kmsg.ShareFetchRequest) { req.MaxWaitMillis = 100 }

// acknowledged tells whether the first of the records that a member held is, which leaves one or two for the next.
func (m *member) acknowledged(first int64) string {
	m.w.Helper()
	m.close()
	next := m.w.member()
	defer next.ack(nil, m.w.p(0), accept(first, first+1))
	switch got := next.takeBy(soon, m.w.p(0)); got {
	case fmt.Sprintf("%d-%dx2", first, first+1):
		return "not acknowledged"
	case fmt.Sprintf("%d-%dx2", first+1, first+1):
		return "acknowledged"
	default:
		return got + " is left"
	}
}

func fetchAckRow(w *world) aclRow {
	return aclRow{
		grants: readers(w),
		without: []string{"ErrorCode " + groupDenied + "; not acknowledged",
			"Topics.Partitions.AcknowledgeErrorCode " + topicDenied + ", Topics.Partitions.ErrorCode " + topicDenied + "; not acknowledged"},
		with: "acknowledged",
		ask: func(w *world, c *conn) string {
			m, first := holds(w)
			req := m.fetching()
			req.MaxWaitMillis = 0
			carry(req, w.p(0), accept(first, first))
			resp, failed := attempt(w, c, req)
			if resp.(*kmsg.ShareFetchResponse).ErrorCode == 0 {
				m.advance(m.epoch)
			}
			return told(failed, m.acknowledged(first))
		},
	}
}

func acknowledgeRow(w *world) aclRow {
	return aclRow{
		grants: readers(w),
		without: []string{"ErrorCode " + groupDenied + "; not acknowledged",
			"Topics.Partitions.ErrorCode " + topicDenied + "; not acknowledged"},
		with: "acknowledged",
		ask: func(w *world, c *conn) string {
			m, first := holds(w)
			req := m.acknowledging()
			carry(req, w.p(0), accept(first, first))
			resp, failed := attempt(w, c, req)
			if resp.(*kmsg.ShareAcknowledgeResponse).ErrorCode == 0 {
				m.advance(m.epoch)
			}
			return told(failed, m.acknowledged(first))
		},
	}
}
