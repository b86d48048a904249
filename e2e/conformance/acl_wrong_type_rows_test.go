//go:build e2e

package conformance

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/harness"
)

// wrongTypeRows are the requests for groups of other types, by a share group's id: what there is of the group is told to
// those only who would be told of a group of that type.
func wrongTypeRows() (rows []namedRow) {
	for _, r := range []struct {
		op      kmsg.ACLOperation
		place   string // of the error
		with    string // error, for who is told
		request func(group string) kmsg.Request
	}{
		{opDescribe, "Groups.ErrorCode ", "", func(group string) kmsg.Request {
			req := kmsg.NewPtrOffsetFetchRequest()
			g := kmsg.NewOffsetFetchRequestGroup()
			g.Group = group
			req.Version, req.Groups = 8, append(req.Groups, g)
			return req
		}},
		{opRead, "ErrorCode ", "INCONSISTENT_GROUP_PROTOCOL", func(group string) kmsg.Request {
			req := kmsg.NewPtrJoinGroupRequest()
			p := kmsg.NewJoinGroupRequestProtocol()
			p.Name = "range"
			req.Version, req.Group, req.MemberID = 5, group, "member"
			req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 10_000, 10_000
			req.ProtocolType, req.Protocols = "consumer", append(req.Protocols, p)
			return req
		}},
		{opRead, "ErrorCode ", "UNKNOWN_MEMBER_ID", func(group string) kmsg.Request {
			req := kmsg.NewPtrHeartbeatRequest()
			req.Version, req.Group, req.MemberID = 4, group, "member"
			return req
		}},
		{opRead, "ErrorCode ", "UNKNOWN_MEMBER_ID", func(group string) kmsg.Request {
			req := kmsg.NewPtrLeaveGroupRequest()
			req.Version, req.Group, req.MemberID = 2, group, "member"
			return req
		}},
		{opRead, "ErrorCode ", "UNKNOWN_MEMBER_ID", func(group string) kmsg.Request {
			req := kmsg.NewPtrSyncGroupRequest()
			req.Version, req.Group, req.MemberID = 4, group, "member"
			return req
		}},
		{opDescribe, "Groups.ErrorCode ", "", func(group string) kmsg.Request {
			req := kmsg.NewPtrDescribeGroupsRequest()
			req.Version, req.Groups = 5, []string{group}
			return req
		}},
		{opRead, "ErrorCode ", "GROUP_ID_NOT_FOUND", func(group string) kmsg.Request {
			req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
			req.Group, req.MemberID, req.MemberEpoch = group, "member", 0
			req.RebalanceTimeoutMillis, req.SubscribedTopicNames, req.Topics = 10_000, []string{}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
			return req
		}},
		{opDescribe, "Groups.ErrorCode ", "GROUP_ID_NOT_FOUND", func(group string) kmsg.Request {
			req := kmsg.NewPtrConsumerGroupDescribeRequest()
			req.Groups = []string{group}
			return req
		}},
	} {
		name := kmsg.NameForKey(r.request("").Key()) + " of a share group"
		rows = append(rows, namedRow{name, func(w *world) aclRow {
			with := "answered"
			if r.with != "" {
				with = r.place + r.with
			}
			return aclRow{
				grants: []harness.Grant{onGroup(r.op, w.group)}, without: []string{r.place + groupDenied}, with: with,
				ask: func(w *world, c *conn) string {
					if _, failed := attempt(w, c, r.request(w.group)); failed != "" {
						return failed
					}
					return "answered"
				},
			}
		}})
	}
	return rows
}
