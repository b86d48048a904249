package main

import (
	"context"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/rs/zerolog"
)

// serveCommand runs one replica until SIGTERM or SIGINT.
func serveCommand(args []string, stdout, stderr io.Writer) error {
	c, err := load(processInputs(args), nil)
	if err != nil {
		return err
	}
	limitMemory(c.CacheBytes)
	log := newLog(stderr, c.LogLevel)
	r, err := newReplica(c, log, stdout)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal()
	defer stop()
	if c.ListenTLS.SNISuffix == "" && onlyLocal(c.Advertise) && !onlyLocal(hostOf(c.Listen)) {
		log.Warn().Str("key", "advertise").Msgf("clients are told to connect to %s, which only works on this machine; set advertise to the name that others reach it by", c.Advertise)
	}
	if err := r.run(ctx); err != nil {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}

func hostOf(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return host
}

// onlyLocal says whether a host is this machine for whoever uses it.
func onlyLocal(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// untilSignal is done at the first SIGTERM or SIGINT; a second one ends the process as if nobody listened.
func untilSignal() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// newLog makes the process' logger. Durations are texts, so that their unit shows.
func newLog(w io.Writer, level zerolog.Level) zerolog.Logger {
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00"
	zerolog.DurationFieldFormat = zerolog.DurationFormatString
	return zerolog.New(zerolog.SyncWriter(w)).Level(level).With().Timestamp().Logger()
}

// baseMemory is what a replica uses beside its cache of batches.
const baseMemory = 96 << 20

// limitMemory makes the collector work harder before the heap doubles over a full cache. An operator's own GOMEMLIMIT stands.
func limitMemory(cacheBytes int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(cacheBytes + baseMemory)
	}
}
