package gateway

import (
	"errors"
	"strings"
	"testing"
)

// scopes parses scopes that are valid.
func scopes(t *testing.T, subject string, list ...string) Scopes {
	t.Helper()
	s, err := ParseScopes(subject, list...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestScopesAllow(t *testing.T) {
	for _, c := range []struct {
		scope string
		p     Permission
		name  string
		want  bool
	}{
		{"topic:read:orders.created", TopicRead, "orders.created", true},
		{"topic:read:orders.created", TopicRead, "orders.created.v2", false},
		{"topic:read:orders.created", TopicRead, "orders", false},
		{"topic:read:orders.created", TopicWrite, "orders.created", false},
		{"topic:read:orders.*", TopicRead, "orders.created", true},
		{"topic:read:orders.*", TopicRead, "orders.a.b", false},
		{"topic:read:orders.*", TopicRead, "orders", false},
		{"topic:read:*.created", TopicRead, "orders.created", true},
		{"topic:read:orders.>", TopicRead, "orders.a.b", true},
		{"topic:read:orders.>", TopicRead, "orders", false},
		{"topic:read:orders.>", TopicRead, "ordersx.a", false},
		{"topic:read:>", TopicRead, "orders", true},
		{"topic:read:>", TopicRead, "", false},
		{"topic:read:>", TopicRead, ">", false},
		{"topic:read:>", TopicRead, "orders.*", false},
		{"topic:read:>", TopicRead, "orders..a", false},
		{"topic:read:>", TopicRead, "orders a", false},
		{"topic:read:>", GroupJoin, "orders", false},

		{"topic:read:>", TopicRead, "dlq.orders", false},
		{"topic:read:dlq.>", TopicRead, "dlq.orders", false},
		{"dlq:read:orders", TopicRead, "dlq.orders", true},
		{"dlq:read:orders", TopicRead, "orders", false},
		{"dlq:read:orders", DeadRead, "orders", true},
		{"dlq:read:orders", DeadReplay, "orders", false},
		{"topic:write:>", TopicWrite, "dlq.orders", false},
		{"topic:write:dlq.>", TopicWrite, "dlq.orders", false},
		{"topic:write:dlq.orders", TopicWrite, "dlq.orders", false},
		{"topic:read:>", TopicRead, "_bus.audit", false},
		{"topic:read:*.audit", TopicRead, "_bus.audit", false},
		{"topic:read:_bus.>", TopicRead, "_bus.audit", true},
		{"topic:write:_bus.audit", TopicWrite, "_bus.audit", false},

		{"group:join:billing", GroupJoin, "billing", true},
		{"group:join:billing", GroupJoin, "Billing", false},
		{"group:join:>", GroupJoin, "a..b", true},
		{"group:join:*", GroupJoin, "_x", true},
		{"group:join:billing", GroupSeek, "billing", false},
		{"ops:read", OpsRead, "", true},
		{"ops:read", OpsAdmin, "", false},
		{"ops:admin", OpsRead, "", true},
		{"topic:read:u.{sub}.>", TopicRead, "u.ann.x", true},
		{"topic:read:u.{sub}.>", TopicRead, "u.bob.x", false},
		{"topic:read:u-{sub}", TopicRead, "u-ann", true},
	} {
		if got := scopes(t, "ann", c.scope).Allow(c.p, c.name); got != c.want {
			t.Errorf("%s allows %s %q: %v", c.scope, c.p, c.name, got)
		}
	}
}

func TestScopesZeroAndAll(t *testing.T) {
	for _, p := range permissions {
		if (Scopes{}).Allow(p, "orders") || (Scopes{}).AllowPattern(p, ">") {
			t.Errorf("no scopes allow %s", p)
		}
		if !AllScopes().Allow(p, "orders") {
			t.Errorf("all scopes do not allow %s", p)
		}
	}
	if AllScopes().Allow(TopicWrite, "dlq.orders") || AllScopes().Allow(TopicWrite, "_bus.audit") {
		t.Error("all scopes allow to write what is the bus's own")
	}
	if !AllScopes().Allow(TopicRead, "dlq.orders") || !AllScopes().Allow(TopicRead, "_bus.audit") {
		t.Error("all scopes do not allow to read what is the bus's own")
	}
}

func TestScopesAllowPattern(t *testing.T) {
	for _, c := range []struct {
		scope, pattern string
		want           bool
	}{
		{"topic:read:>", ">", true},
		{"topic:read:>", "orders.>", true},
		{"topic:read:>", "*.a", true},
		{"topic:read:*", ">", false},
		{"topic:read:*", "*", true},
		{"topic:read:orders.>", "orders.*", true},
		{"topic:read:orders.>", "orders.a.>", true},
		{"topic:read:orders.>", ">", false},
		{"topic:read:orders.*", "orders.>", false},
		{"topic:read:orders.*", "*.*", false},
		{"topic:read:>", "dlq.>", false},
		{"topic:read:>", "_bus.>", false},
		{"topic:read:>", "a.>.b", false},
		{"topic:read:>", "", false},
	} {
		if got := scopes(t, "ann", c.scope).AllowPattern(TopicRead, c.pattern); got != c.want {
			t.Errorf("%s covers %q: %v", c.scope, c.pattern, got)
		}
	}
}

func TestParseScopesRefuses(t *testing.T) {
	for _, c := range []struct{ subject, scope string }{
		{"ann", ""},
		{"ann", "topic"},
		{"ann", "topic:read"},
		{"ann", "topic:read:"},
		{"ann", "topic:reader:a"},
		{"ann", "topic:read:a b"},
		{"ann", "topic:read:a..b"},
		{"ann", "topic:read:.a"},
		{"ann", "topic:read:a."},
		{"ann", "topic:read:>.a"},
		{"ann", "topic:read:a*"},
		{"ann", "topic:read:a.b>"},
		{"ann", "topic:read:a:b"},
		{"ann", "topic:read:a\x00"},
		{"ann", "topic:read:{tenant}"},
		{"ann", "topic:read:" + strings.Repeat("a", maxPatternBytes+1)},
		{"ann", "Topic:read:a"},
		{"ann", "ops:read:>"},
		{"ann", "ops:write"},
		{"", "topic:read:{sub}"},
		{"*", "topic:read:{sub}"},
		{">", "topic:read:u.{sub}"},
		{"a.b", "topic:read:u.{sub}"},
		{"a b", "topic:read:u.{sub}"},
		{"{sub}", "topic:read:u.{sub}"},
	} {
		if s, err := ParseScopes(c.subject, c.scope); !errors.Is(err, ErrInvalidScope) || s.Allow(TopicRead, "a") {
			t.Errorf("subject %q, scope %.60q: %v, %v", c.subject, c.scope, s, err)
		}
	}
	if _, err := ParseScopes("ann", make([]string, maxScopes+1)...); !errors.Is(err, ErrInvalidScope) {
		t.Errorf("too many scopes: %v", err)
	}
	// One that is wrong leaves nothing of the others.
	if s, err := ParseScopes("ann", "topic:read:a", "topic:read:"); err == nil || s.Allow(TopicRead, "a") {
		t.Errorf("half of the scopes count: %v, %v", s, err)
	}
}

func TestGroupsOfAPrincipal(t *testing.T) {
	ann := Principal{Subject: "ann", Scopes: scopes(t, "ann", "topic:read:orders", "group:join:billing")}
	for _, c := range []struct {
		topic, group string
		join, seek   bool
	}{
		{"orders", "billing", true, false},
		{"orders", "ops", false, false},
		{"other", "billing", false, false},
		{"other", "u.ann", false, false},
		{"orders", "u.ann", true, true},
		{"orders", "u.ann.tab1", true, true},
		{"orders", "u.anna", false, false},
		{"orders", "u.bob", false, false},
	} {
		if got := ann.mayJoin(c.topic, c.group); got != c.join {
			t.Errorf("join %s/%s: %v", c.topic, c.group, got)
		}
		if got := ann.maySeek(c.topic, c.group); got != c.seek {
			t.Errorf("seek %s/%s: %v", c.topic, c.group, got)
		}
	}
	for _, subject := range []string{"", "a.b"} {
		who := Principal{Subject: subject, Scopes: scopes(t, subject, "topic:read:>")}
		if who.mayJoin("orders", "u."+subject) {
			t.Errorf("the subject %q has groups of its own", subject)
		}
	}
}

func FuzzParseScopes(f *testing.F) {
	for _, s := range []string{"topic:read:orders.>", "topic:write:*", "ops:read", "dlq:read:u.{sub}", "topic:read:a..b", "group:join:>.a", "\xff", "topic:read:dlq.a"} {
		f.Add("ann", s, "orders.created")
	}
	f.Fuzz(func(t *testing.T, subject, scope, name string) {
		s, err := ParseScopes(subject, scope)
		if err != nil {
			if !errors.Is(err, ErrInvalidScope) {
				t.Fatalf("%q: %v", scope, err)
			}
			for _, p := range permissions {
				if s.Allow(p, name) {
					t.Fatalf("%q is refused and allows %s %q", scope, p, name)
				}
			}
			return
		}
		for _, p := range permissions {
			allowed := s.Allow(p, name)
			switch {
			case !allowed:
				continue
			case p.takesPattern() && (name == "" || strings.ContainsAny(name, "*> \t\n")):
				t.Fatalf("%q allows %s %q", scope, p, name)
			case p == TopicWrite && (strings.HasPrefix(name, "dlq.") || strings.HasPrefix(name, "_")):
				t.Fatalf("%q allows to write %q", scope, name)
			case !strings.HasPrefix(scope, string(p)) && p != OpsRead && !strings.HasPrefix(scope, string(DeadRead)):
				t.Fatalf("%q allows %s %q", scope, p, name)
			}
			// What covers all of a pattern covers each name of it.
			if p.takesPattern() && s.AllowPattern(p, ">") && !s.Allow(p, "a.b") {
				t.Fatalf("%q covers all of %s but a.b", scope, p)
			}
		}
	})
}
