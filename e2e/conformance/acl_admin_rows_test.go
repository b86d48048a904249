//go:build e2e

package conformance

import (
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/harness"
)

// Rows of the ACL table for offsets, the end of a group, and configs.

func describers(w *world) []harness.Grant {
	return []harness.Grant{onGroup(opDescribe, w.group), onTopic(opDescribe, w.main)}
}

func describeOffsetsRow(w *world) aclRow {
	named := kmsg.NewDescribeShareGroupOffsetsRequestGroupTopic()
	named.Topic, named.Partitions = w.main.name, []int32{0}
	return aclRow{
		grants:  describers(w),
		without: []string{"Groups.ErrorCode " + groupDenied, "Groups.Topics.Partitions.ErrorCode " + topicDenied},
		with:    "an offset", implied: [][]harness.Grant{readers(w)},
		ask: func(w *world, c *conn) string { return askOffsets(w, c, named) },
	}
}

func describeAllOffsetsRow(w *world) aclRow {
	return aclRow{
		grants:  describers(w),
		without: []string{"Groups.ErrorCode " + groupDenied, "nothing"},
		with:    "an offset", implied: [][]harness.Grant{readers(w)},
		ask: func(w *world, c *conn) string { return askOffsets(w, c) },
	}
}

func askOffsets(w *world, c *conn, topics ...kmsg.DescribeShareGroupOffsetsRequestGroupTopic) string {
	req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
	req.Version = 1
	g := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
	g.GroupID, g.Topics = w.group, topics
	req.Groups = append(req.Groups, g)
	resp, failed := attempt(w, c, req)
	if failed != "" {
		return failed
	}
	if len(resp.(*kmsg.DescribeShareGroupOffsetsResponse).Groups[0].Topics) == 0 {
		return "nothing"
	}
	return "an offset"
}

// emptied makes a world's group one without members.
func emptied(w *world) {
	w.Helper()
	for _, m := range w.describeGroup(w.group).Members {
		b := &beater{w: w, c: w.admin, group: w.group, id: m.MemberID, epoch: -1}
		b.beats(unchanged)
	}
}

func alterOffsetsRow(w *world) aclRow {
	emptied(w)
	w.produceEach(w.p(0), 3, 1)
	start := func() int64 { at, _ := w.described(w.p(0)); return at }
	return aclRow{
		grants:  readers(w),
		without: []string{"ErrorCode " + groupDenied + "; as it was", "Topics.Partitions.ErrorCode " + topicDenied + "; as it was"},
		with:    "altered",
		ask: func(w *world, c *conn) string {
			before := start()
			req := kmsg.NewPtrAlterShareGroupOffsetsRequest()
			req.GroupID = w.group
			part := kmsg.NewAlterShareGroupOffsetsRequestTopicPartition()
			part.StartOffset = (before + 2) % 3
			t := kmsg.NewAlterShareGroupOffsetsRequestTopic()
			t.Topic, t.Partitions = w.main.name, append(t.Partitions, part)
			req.Topics = append(req.Topics, t)
			_, failed := attempt(w, c, req)
			if start() == before {
				return told(failed, "as it was")
			}
			return told(failed, "altered")
		},
	}
}

func deleteOffsetsRow(w *world) aclRow {
	emptied(w)
	return aclRow{
		grants:  []harness.Grant{onGroup(opDelete, w.group), onTopic(opRead, w.main)},
		without: []string{"ErrorCode " + groupDenied + "; as they were", "Topics.ErrorCode " + topicDenied + "; as they were"},
		with:    "deleted",
		ask: func(w *world, c *conn) string {
			w.alters(w.group, place{w.p(0), 0})
			before := w.startOffsets(w.group, w.main)
			req := kmsg.NewPtrDeleteShareGroupOffsetsRequest()
			req.GroupID = w.group
			t := kmsg.NewDeleteShareGroupOffsetsRequestTopic()
			t.Topic = w.main.name
			req.Topics = append(req.Topics, t)
			_, failed := attempt(w, c, req)
			switch w.startOffsets(w.group, w.main) {
			case before:
				return told(failed, "as they were")
			case "":
				return told(failed, "deleted")
			}
			return told(failed, w.startOffsets(w.group, w.main))
		},
	}
}

func deleteGroupsRow(w *world) aclRow {
	emptied(w)
	return aclRow{
		grants:  []harness.Grant{onGroup(opDelete, w.group)},
		without: []string{"Groups.ErrorCode " + groupDenied + "; there"},
		with:    "gone",
		ask: func(w *world, c *conn) string {
			w.alters(w.group, place{w.p(0), 0}) // makes the group if there is none
			req := kmsg.NewPtrDeleteGroupsRequest()
			req.Version, req.Groups = 2, []string{w.group}
			_, failed := attempt(w, c, req)
			if w.listed(w.group) != "" {
				return told(failed, "there")
			}
			return told(failed, "gone")
		},
	}
}

// onConfigs is a grant for configs of a group, for the cluster's where upstream does not know others.
func onConfigs(w *world, op kmsg.ACLOperation) harness.Grant {
	if allowed().clusterConfigACLs {
		return onCluster(op)
	}
	return onGroup(op, w.group)
}

func describeConfigsRow(w *world) aclRow {
	return aclRow{
		grants:  []harness.Grant{onConfigs(w, opDescribeConfigs)},
		without: []string{"Resources.ErrorCode " + groupDenied}, with: "configs",
		implied: [][]harness.Grant{{onConfigs(w, opAlterConfigs)}},
		ask: func(w *world, c *conn) string {
			req := kmsg.NewPtrDescribeConfigsRequest()
			req.Version = 4
			res := kmsg.NewDescribeConfigsRequestResource()
			res.ResourceType, res.ResourceName = groupResource, w.group
			req.Resources = append(req.Resources, res)
			resp, failed := attempt(w, c, req)
			if len(resp.(*kmsg.DescribeConfigsResponse).Resources[0].Configs) > 0 {
				return told(failed, "configs")
			}
			return failed
		},
	}
}

const heartbeatConfig = "share.heartbeat.interval.ms"

// groupConfig is the value of a config of the world's group.
func (w *world) groupConfig(key string) string {
	w.Helper()
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Version = 4
	res := kmsg.NewDescribeConfigsRequestResource()
	res.ResourceType, res.ResourceName, res.ConfigNames = groupResource, w.group, []string{key}
	req.Resources = append(req.Resources, res)
	got := ask[*kmsg.DescribeConfigsResponse](w, w.admin, req).Resources[0]
	if got.ErrorCode != 0 || len(got.Configs) != 1 || got.Configs[0].Value == nil {
		w.Fatalf("config %s: %+v", key, got)
	}
	return *got.Configs[0].Value
}

// altersConfigs makes a row of a request that sets a config.
func altersConfigs(w *world, request func(value string) kmsg.Request) aclRow {
	n := 5000
	return aclRow{
		grants:  []harness.Grant{onConfigs(w, opAlterConfigs)},
		without: []string{"Resources.ErrorCode " + groupDenied + "; as it was"}, with: "altered",
		ask: func(w *world, c *conn) string {
			n++
			value, before := fmt.Sprint(n), w.groupConfig(heartbeatConfig)
			_, failed := attempt(w, c, request(value))
			if failed == "" {
				w.shows(w.group, heartbeatConfig, value)
				return "altered"
			}
			if w.groupConfig(heartbeatConfig) == before {
				return told(failed, "as it was")
			}
			return told(failed, "altered")
		},
	}
}

func incrementalAlterRow(w *world) aclRow {
	return altersConfigs(w, func(value string) kmsg.Request {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		req.Version = 1
		c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		c.Name, c.Value = heartbeatConfig, &value
		res := kmsg.NewIncrementalAlterConfigsRequestResource()
		res.ResourceType, res.ResourceName, res.Configs = groupResource, w.group, append(res.Configs, c)
		req.Resources = append(req.Resources, res)
		return req
	})
}

func alterConfigsRow(w *world) aclRow {
	return altersConfigs(w, func(value string) kmsg.Request {
		req := kmsg.NewPtrAlterConfigsRequest()
		req.Version = 2
		c := kmsg.NewAlterConfigsRequestResourceConfig()
		c.Name, c.Value = heartbeatConfig, &value
		res := kmsg.NewAlterConfigsRequestResource()
		res.ResourceType, res.ResourceName, res.Configs = groupResource, w.group, append(res.Configs, c)
		req.Resources = append(req.Resources, res)
		return req
	})
}

func listConfigsRow(*world) aclRow {
	return aclRow{
		grants:  []harness.Grant{onCluster(opDescribeConfigs)},
		without: []string{"ErrorCode " + clusterDenied + "; not listed"}, with: "listed",
		implied: [][]harness.Grant{{onCluster(opAlterConfigs)}},
		ask: func(w *world, c *conn) string {
			req := kmsg.NewPtrListConfigResourcesRequest()
			req.Version, req.ResourceTypes = 1, []int8{int8(groupResource)}
			resp, failed := attempt(w, c, req)
			if slices.ContainsFunc(resp.(*kmsg.ListConfigResourcesResponse).ConfigResources, func(r kmsg.ListConfigResourcesResponseConfigResource) bool {
				return r.Name == w.group
			}) {
				return told(failed, "listed")
			}
			return told(failed, "not listed")
		},
	}
}
