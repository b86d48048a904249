//go:build e2e

package conformance

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"kshare/e2e/harness"
)

// aclRow is a row of the table of who may do what (spec 8), made for a world.
type aclRow struct {
	grants  []harness.Grant // all that the request needs
	without []string        // outcome without each
	with    string          // outcome with all of them
	// implied stand for the grants one by one, and are as good.
	implied [][]harness.Grant
	// ask sends the request once more, and tells what came of it: the errors of the response, and what was done.
	ask func(w *world, c *conn) string
}

// aclMatrix collects what came of each case, to be printed.
type aclMatrix struct {
	mu   sync.Mutex
	rows map[string][]string
}

var matrix = aclMatrix{rows: map[string][]string{}}

func (m *aclMatrix) note(row, what, outcome string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rows[row] = append(m.rows[row], fmt.Sprintf("%-40s %-44s %s\n", row, what, outcome))
}

func (m *aclMatrix) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.rows) == 0 {
		return ""
	}
	on := "kshare over Kafka " + upstreamVersion()
	if native() {
		on = "native Kafka " + suite.Version("KAFKA_NEW")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "ACLs on %s\n", on)
	for _, row := range append(slices.Clone(aclRows), offCoordinatorRows...) {
		b.WriteString(strings.Join(m.rows[row.name], ""))
	}
	return b.String()
}

// short is a grant without the names that tests make up.
func short(g harness.Grant) string {
	s := fmt.Sprintf("%v %v", g.Op, g.Resource)
	if g.Deny {
		s = "DENY " + s
	}
	return s
}

// Each row of section 8: without exactly one of the grants a request is refused as stated and does nothing; with no more
// than the grants it is served. Both at the same time, with whatever a proxy keeps of both.
func TestCheck131_RowsOfTheACLTable(t *testing.T) {
	states.record(t)
	for i, row := range aclRows {
		t.Run(row.name, func(t *testing.T) {
			w := enter(t, setup{secured: true})
			row.test(w, row.make(w), w.tg.at(i%w.tg.count(), w.node))
		})
	}
}

// aclUser is somebody with grants, and the connection that he has kept.
type aclUser struct {
	name, what, want string
	grants           []harness.Grant
	c                *conn
}

func (r namedRow) test(w *world, row aclRow, address string) {
	users := row.users(w)
	var all []harness.Grant
	for i, u := range users {
		users[i].name = fmt.Sprintf("user%d-%s", i, w.unique())
		all = append(all, of(users[i].name, u.grants)...)
	}
	if err := w.tg.kafka.Grant(all...); err != nil {
		w.Fatal(err)
	}
	// Twice, for at the second time everybody's permissions are known, and others have been served.
	for turn := range 2 {
		for i := range users {
			u := &users[i]
			if turn == 0 {
				u.c = w.dialAs(u.name, address)
			}
			got := row.ask(w, u.c)
			if turn == 0 {
				matrix.note(r.name, u.what, got)
			}
			if got != u.want {
				w.Errorf("%s, turn %d: %s, want %s", u.what, turn+1, got, u.want)
			}
		}
	}
}

// users are those that a row is tried with, the ones that are refused first.
func (row aclRow) users(w *world) (users []aclUser) {
	add := func(what, want string, grants ...harness.Grant) {
		users = append(users, aclUser{what: what, want: want, grants: grants})
	}
	for i, g := range row.grants {
		add("without "+short(g), row.without[i], slices.Delete(slices.Clone(row.grants), i, i+1)...)
		denial := g
		denial.Deny = true
		add(short(denial), row.without[i], append(slices.Clone(row.grants), denial)...)
	}
	if len(row.grants) > 1 {
		add("with nothing", row.without[0])
	}
	add("with all of these", row.with, row.grants...)
	as := func(change func(g *harness.Grant)) []harness.Grant {
		grants := slices.Clone(row.grants)
		for i := range grants {
			if grants[i].Resource != kmsg.ACLResourceTypeCluster {
				change(&grants[i])
			}
		}
		return grants
	}
	if row.grants[0].Resource != kmsg.ACLResourceTypeCluster {
		add("by prefixes", row.with, as(func(g *harness.Grant) { g.Prefixed, g.Name = true, g.Name[:len(g.Name)-1] })...)
		add("by wildcards", row.with, as(func(g *harness.Grant) { g.Name = "*" })...)
	}
	if grants, denials := row.undescribed(); len(denials) > 0 {
		add("beside "+strings.Join(denials, ", "), row.with, grants...)
	}
	for _, grants := range row.implied {
		var what []string
		for _, g := range grants {
			what = append(what, short(g))
		}
		add("by "+strings.Join(what, ", "), row.with, grants...)
	}
	return users
}

// undescribed are the grants, with DESCRIBE denied where it is not among them. Nobody needs it who has what implies it.
func (row aclRow) undescribed() (grants []harness.Grant, denials []string) {
	grants = slices.Clone(row.grants)
	for _, g := range row.grants {
		if g.Op != opDescribe {
			g.Op, g.Deny = opDescribe, true
			grants, denials = append(grants, g), append(denials, short(g))
		}
	}
	return grants, denials
}

// failures names the errors of a response and their places: "Topics.Partitions.ErrorCode TOPIC_AUTHORIZATION_FAILED".
func failures(resp kmsg.Response) string {
	var found []string
	collect(reflect.ValueOf(resp).Elem(), "", &found)
	slices.Sort(found)
	return strings.Join(slices.Compact(found), ", ")
}

func collect(v reflect.Value, path string, found *[]string) {
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			collect(v.Index(i), path, found)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			collect(v.Elem(), path, found)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if strings.HasSuffix(name, "ErrorCode") {
				if code := int16(v.Field(i).Int()); code != 0 {
					text := fmt.Sprint(code)
					if err := kerr.TypedErrorForCode(code); err != nil {
						text = err.Message
					}
					*found = append(*found, path+name+" "+text)
				}
				continue
			}
			collect(v.Field(i), path+name+".", found)
		}
	}
}

// attempt sends a request, and tells the errors of its response.
func attempt(w *world, c *conn, req kmsg.Request) (kmsg.Response, string) {
	w.Helper()
	resp := ask[kmsg.Response](w, c, req)
	return resp, failures(resp)
}

// told is an outcome as it is printed.
func told(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	return strings.Join(parts, "; ")
}

// What a user is told that it may do with the group is what it may do.
func TestOperationsOnAShareGroupAreThoseGranted(t *testing.T) {
	w := enter(t, setup{secured: true})
	bits := func(ops ...kmsg.ACLOperation) (mask int32) {
		for _, op := range ops {
			mask |= 1 << op
		}
		return mask
	}
	for what, u := range map[string]struct {
		grants []harness.Grant
		want   int32
	}{
		"READ":   {[]harness.Grant{onGroup(opRead, w.group)}, bits(opRead, opDescribe)},
		"DELETE": {[]harness.Grant{onGroup(opDelete, w.group)}, bits(opDelete, opDescribe)},
		"DESCRIBE and configs": {[]harness.Grant{onGroup(opDescribe, w.group), onConfigs(w, opAlterConfigs)},
			bits(opDescribe, opDescribeConfigs, opAlterConfigs)},
		"ALL without READ": {[]harness.Grant{onGroup(kmsg.ACLOperationAll, w.group), onConfigs(w, kmsg.ACLOperationAll),
			{Op: opRead, Resource: kmsg.ACLResourceTypeGroup, Name: w.group, Deny: true}},
			bits(opDelete, opDescribe, opDescribeConfigs, opAlterConfigs)},
	} {
		user := "user-" + w.unique()
		w.granted(user, append(u.grants, onTopic(opDescribe, w.main))...)
		req := kmsg.NewPtrShareGroupDescribeRequest()
		req.Version, req.GroupIDs, req.IncludeAuthorizedOperations = 1, []string{w.group}, true
		got := ask[*kmsg.ShareGroupDescribeResponse](w, w.dialAs(user, w.node), req).Groups[0]
		w.code(what, got.ErrorCode, nil)
		if got.AuthorizedOperations != u.want {
			t.Errorf("%s: operations %b, want %b", what, got.AuthorizedOperations, u.want)
		}
	}
}
