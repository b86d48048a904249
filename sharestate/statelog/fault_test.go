package statelog

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// verdict is what the faulty network does with one request (what the client wrote in one piece).
type verdict int

const (
	pass      verdict = iota
	cutBefore         // the request is lost, the connection too
	cutReply          // the server gets the request, the client gets a cut connection instead of the reply
	hold              // the client's connection is cut; the request stays in the network until release
	stall             // the server gets the request, the reply never comes
)

// faultyNet is a TCP proxy in front of a server that loses, cuts and delays by plan.
type faultyNet struct {
	t      testing.TB
	user   string // of target
	target string
	l      net.Listener
	plan   atomic.Pointer[func(request []byte) verdict]

	mu   sync.Mutex
	held [][]byte
	open map[net.Conn]struct{}
	wg   sync.WaitGroup
}

func newFaultyNet(t testing.TB, target string) *faultyNet {
	l, err := net.Listen("tcp", "127.0.0.1:0") // it never has to come back at the same port
	if err != nil {
		t.Fatal(err)
	}
	user, target := splitUser(target)
	f := &faultyNet{t: t, user: user, target: target, l: l, open: make(map[net.Conn]struct{})}
	f.wg.Go(f.accept)
	t.Cleanup(func() { l.Close(); f.cutAll(); f.wg.Wait() })
	return f
}

func (f *faultyNet) addr() string { return f.user + f.l.Addr().String() }

// judge sets the plan; nil = pass all.
func (f *faultyNet) judge(plan func(request []byte) verdict) {
	if plan == nil {
		f.plan.Store(nil)
		return
	}
	f.plan.Store(&plan)
}

// once applies v to the first request that holds want, and reports when that has happened.
func (f *faultyNet) once(v verdict, want []byte) (happened func() bool) {
	var n atomic.Int32
	f.judge(func(request []byte) verdict {
		if bytes.Contains(request, want) && n.CompareAndSwap(0, 1) {
			return v
		}
		return pass
	})
	return func() bool { return n.Load() == 1 }
}

// release delivers what was held, and waits until the server has taken it.
func (f *faultyNet) release() {
	f.mu.Lock()
	held := f.held
	f.held = nil
	f.mu.Unlock()
	for _, request := range held {
		c, err := net.Dial("tcp", f.target)
		if err != nil {
			f.t.Fatal(err)
		}
		if _, err := c.Write(request); err != nil {
			f.t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Read(make([]byte, 1<<16)); err != nil {
			f.t.Fatal(err)
		}
		c.Close()
	}
}

func (f *faultyNet) cutAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.open {
		c.Close()
	}
}

func (f *faultyNet) accept() {
	for {
		client, err := f.l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", f.target)
		if err != nil {
			client.Close()
			continue
		}
		f.mu.Lock()
		f.open[client], f.open[server] = struct{}{}, struct{}{}
		f.mu.Unlock()
		var replies atomic.Int32 // the verdict on replies
		f.wg.Go(func() { f.requests(client, server, &replies) })
		f.wg.Go(func() { f.replies(client, server, &replies) })
	}
}

func (f *faultyNet) drop(cs ...net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range cs {
		c.Close()
		delete(f.open, c)
	}
}

func (f *faultyNet) requests(client, server net.Conn, replies *atomic.Int32) {
	defer f.drop(client, server)
	buf := make([]byte, 1<<20)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		request := buf[:n]
		v := pass
		if plan := f.plan.Load(); plan != nil {
			v = (*plan)(request)
		}
		switch v {
		case cutBefore:
			return
		case hold:
			f.mu.Lock()
			f.held = append(f.held, slices.Clone(request))
			f.mu.Unlock()
			return
		case cutReply, stall:
			replies.Store(int32(v))
		}
		if _, err := server.Write(request); err != nil {
			return
		}
	}
}

func (f *faultyNet) replies(client, server net.Conn, replies *atomic.Int32) {
	defer f.drop(client, server)
	buf := make([]byte, 1<<20)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		switch verdict(replies.Load()) {
		case cutReply: // so the server has carried the request out
			return
		case stall:
			continue
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}
