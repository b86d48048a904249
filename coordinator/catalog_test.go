package coordinator

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func watching(topics ...Topic) *watchlist {
	w := &watchlist{topics: make(map[string]Topic)}
	for _, t := range topics {
		w.topics[t.Name] = t
		w.names = append(w.names, t.Name)
	}
	return w
}

func (c *catalog) mustFetch(t *testing.T, names ...string) {
	t.Helper()
	if err := c.fetch(context.Background(), names); err != nil {
		t.Fatal(err)
	}
}

func TestTopicIsGoneOnlyAfterTwoAnswersAWhileApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := &upstream{}
		c := newCatalog(up)
		w, since := watching(testTopic("t", 2)), time.Now()
		gone := func() int { return len(c.compare(w, w.names, since).Gone) }
		time.Sleep(time.Millisecond)
		c.mustFetch(t, "t")
		if gone() != 0 {
			t.Fatal("gone after one answer")
		}
		time.Sleep(time.Second)
		c.mustFetch(t, "t")
		if gone() != 0 {
			t.Fatal("gone after two answers within a second")
		}
		up.set(testTopic("t", 2))
		time.Sleep(time.Second)
		c.mustFetch(t, "t")
		up.remove("t")
		time.Sleep(time.Second)
		c.mustFetch(t, "t")
		if gone() != 0 {
			t.Fatal("gone although it was there between")
		}
		time.Sleep(2 * time.Second)
		c.mustFetch(t, "t")
		if gone() != 1 {
			t.Fatal("not gone")
		}
	})
}

func TestOlderAnswerChangesNothingButGrowth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := &upstream{}
		up.set(testTopic("t", 3))
		c := newCatalog(up)
		c.mustFetch(t, "t")
		time.Sleep(time.Second)
		since := time.Now()
		grown := watching(testTopic("t", 2))
		if news := c.compare(grown, grown.names, since); len(news.Topics) != 1 || news.Topics[0].Partitions != 3 {
			t.Fatalf("growth: %+v", news)
		}
		other := watching(Topic{Name: "t", ID: testID("newer"), Partitions: 1})
		if news := c.compare(other, other.names, since); len(news.Topics)+len(news.Gone) != 0 {
			t.Fatalf("an older answer replaces a topic: %+v", news)
		}
		shrunk := watching(testTopic("t", 5))
		if news := c.compare(shrunk, shrunk.names, since); len(news.Topics)+len(news.Gone) != 0 {
			t.Fatalf("an older answer shrinks a topic: %+v", news)
		}
		time.Sleep(time.Second)
		c.mustFetch(t, "t")
		if news := c.compare(other, other.names, since); len(news.Topics) != 1 {
			t.Fatalf("a newer answer does not replace a topic: %+v", news)
		}
	})
}

func TestJoinAsksAgainForTopicsThatWereMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCatalog(&upstream{})
		if got := c.unsure([]string{"t"}); len(got) != 1 {
			t.Fatal("an unknown topic is not asked for")
		}
		c.mustFetch(t, "t")
		if got := c.unsure([]string{"t"}); len(got) != 0 {
			t.Fatal("a topic that was just missing is asked for")
		}
		time.Sleep(time.Second)
		if got := c.unsure([]string{"t"}); len(got) != 1 {
			t.Fatal("a topic that was missing a while ago is not asked for")
		}
	})
}
