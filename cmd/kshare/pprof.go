package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/pprof" // #nosec G108 -- it registers itself with http.DefaultServeMux, which nothing here serves
)

var pprofSettings = []setting{
	{key: "pprof", arg: "HOST:PORT", meaning: "/debug/pprof/ for Go's profiler, on a loopback address; off if not given",
		set: func(c *Config, v string) error { c.Pprof = v; return checkLoopback(v) },
		get: func(c *Config) string { return c.Pprof }},
}

// checkLoopback refuses an address that others can reach.
func checkLoopback(v string) error {
	if err := checkHostPort(v, true); err != nil {
		return err
	}
	if !onlyLocal(hostOf(v)) {
		_, port, _ := net.SplitHostPort(v)
		return fmt.Errorf("%q can be reached from other machines, and a profile tells a lot; give a loopback address such as 127.0.0.1:%s", v, port)
	}
	return nil
}

// listenPprof takes the port, nil if there is to be none.
func (c *Config) listenPprof() (net.Listener, error) {
	if c.Pprof == "" {
		return nil, nil
	}
	listener, err := net.Listen("tcp", c.Pprof)
	if err != nil {
		return nil, bindError("pprof", c.Pprof, err)
	}
	if at, ok := listener.Addr().(*net.TCPAddr); !ok || !at.IP.IsLoopback() { // whatever localhost means here
		_ = listener.Close()
		return nil, &configError{key: "pprof", source: c.origin["pprof"], problem: fmt.Sprintf("%s is %s here, which is no loopback address, give 127.0.0.1", c.Pprof, listener.Addr())}
	}
	return listener, nil
}

// pprofEndpoints are those of net/http/pprof less the command line, which may hold a password.
func pprofEndpoints() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
