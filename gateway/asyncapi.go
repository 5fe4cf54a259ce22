package gateway

import (
	"net/http"

	"github.com/seed-63e9a637/jetbus"
)

// asyncAPI serves GET /asyncapi.json: AsyncAPI 3.0, with the topics that the token may see.
// It describes the gateway: what it sends is what clients read.
func (g *Gateway) asyncAPI(w http.ResponseWriter, r *http.Request) {
	topics, release, err := g.documented(r)
	if err != nil {
		g.problem(w, r, err)
		return
	}
	defer release()
	channels, ways, messages := object{}, object{}, object{}
	for _, t := range topics {
		message := object{"name": t.name, "contentType": "application/json", "payload": object{}}
		if t.schema != nil {
			message["payload"] = embedded(t.schema, "#/components/messages/"+t.name+"/payload")
		}
		messages[t.name] = message
		channel := object{"address": t.name, "messages": object{"event": object{"$ref": "#/components/messages/" + t.name}}}
		if t.about != "" {
			channel["description"] = t.about
		}
		channels[t.name] = channel
		way := func(action string) object {
			return object{
				"action": action, "channel": object{"$ref": "#/channels/" + t.name},
				"messages": []any{object{"$ref": "#/channels/" + t.name + "/messages/event"}},
			}
		}
		ways["read."+t.name] = way("send")
		if !jetbus.IsDeadLetterTopic(t.name) && !t.snapshot {
			ways["publish."+t.name] = way("receive")
		}
	}
	scheme := "ws"
	if r.TLS != nil {
		scheme = "wss"
	}
	server := object{"host": r.Host, "pathname": "/ws", "protocol": scheme, "description": "WebSocket with the subprotocol jetbus.v1.json"}
	components := object{"messages": messages}
	if g.c.Auth != nil {
		components["securitySchemes"] = object{"token": object{"type": "http", "scheme": "bearer"}}
		server["security"] = []any{object{"$ref": "#/components/securitySchemes/token"}}
	}
	answer(w, http.StatusOK, object{
		"asyncapi":           "3.0.0",
		"info":               object{"title": "JetBus gateway", "version": apiVersion},
		"defaultContentType": "application/json",
		"servers":            object{"gateway": server},
		"channels":           channels,
		"operations":         ways,
		"components":         components,
	})
}
