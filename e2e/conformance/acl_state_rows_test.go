//go:build e2e

package conformance

import (
	"encoding/base64"
	"reflect"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/harness"
)

// base64ID is a topic id as text.
func base64ID(id [16]byte) string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// shareStateRows are the requests that brokers send each other. kshare keeps the state elsewhere, and ends a connection
// that asks for it.
func shareStateRows() (rows []namedRow) {
	for key := int16(83); key <= 87; key++ {
		name := kmsg.NameForKey(key)
		rows = append(rows, namedRow{name, func(w *world) aclRow {
			row := aclRow{
				grants:  []harness.Grant{onCluster(opClusterAction)},
				without: []string{"Topics.Partitions.ErrorCode " + clusterDenied}, with: "answered",
				ask: func(w *world, c *conn) string {
					resp, err := c.do(aboutState(key, w))
					if err != nil {
						return "the connection ends"
					}
					if failed := failures(resp); strings.Contains(failed, clusterDenied) {
						return failed
					}
					return "answered"
				},
			}
			if allowed().noShareState {
				row.without, row.with = []string{"the connection ends"}, "the connection ends"
			}
			return row
		}})
	}
	return rows
}

// aboutState is a request about the state of a partition of the world's topic, for a group that there is not.
func aboutState(key int16, w *world) kmsg.Request {
	req := kmsg.RequestForKey(key)
	req.SetVersion(0)
	v := reflect.ValueOf(req).Elem()
	v.FieldByName("GroupID").SetString("no-" + w.group)
	topics := v.FieldByName("Topics")
	topics.Set(reflect.MakeSlice(topics.Type(), 1, 1))
	t := topics.Index(0)
	t.FieldByName("TopicID").Set(reflect.ValueOf(w.main.id))
	partitions := t.FieldByName("Partitions")
	partitions.Set(reflect.MakeSlice(partitions.Type(), 1, 1))
	return req
}
