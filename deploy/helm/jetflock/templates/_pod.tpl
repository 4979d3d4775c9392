{{/* Where a pod may run, and as whom. (dict "root" $ "component" c "values" v) */}}
{{- define "jetflock.placement" -}}
enableServiceLinks: false  # a Service `jetflock` would set JETFLOCK_PORT
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range .values.topologySpreadConstraints }}
  {{- $selector := dict "labelSelector" (dict "matchLabels" (include "jetflock.selector" $ | fromYaml)) }}
  - {{- merge (deepCopy .) $selector | toYaml | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "jetflock.podMetadata" -}}
{{- with .values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
labels:
  {{- include "jetflock.labels" . | nindent 2 }}
  {{- with .values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "jetflock.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* What every role is told of the broker. (dict "root" $ "role" "frontend") */}}
{{- define "jetflock.brokerEnv" -}}
{{- $values := .root.Values }}
{{- $auth := $values.nats.auth }}
- {name: JETFLOCK_NATS_URL, value: {{ include "jetflock.natsUrl" .root | quote }}}
- {name: JETFLOCK_NATS_CONNECT_TIMEOUT_S, value: "120"}
- {name: JETFLOCK_PREFIX, value: {{ $values.streams.prefix | quote }}}
- {name: JETFLOCK_NUM_PARTITIONS, value: {{ $values.streams.partitions | quote }}}
- {name: JETFLOCK_REPLICAS, value: {{ $values.streams.replicas | quote }}}
- {name: JETFLOCK_ACK_WAIT_S, value: {{ $values.streams.ackWaitSeconds | quote }}}
- {name: JETFLOCK_MAX_DEADLINE_S, value: {{ $values.streams.maxDeadlineSeconds | quote }}}
- {name: JETFLOCK_RESUME_WINDOW_S, value: {{ $values.streams.resumeWindowSeconds | quote }}}
- {name: JETFLOCK_QUEUE_MAX_MSGS, value: {{ $values.streams.queueMaxMsgs | int64 | quote }}}
- {name: JETFLOCK_QUEUE_MAX_BYTES, value: {{ $values.streams.queueMaxBytes | int64 | quote }}}
- {name: JETFLOCK_LOG_MAX_BYTES, value: {{ $values.streams.logMaxBytes | int64 | quote }}}
- {name: JETFLOCK_RESPONSE_TTL_S, value: {{ $values.streams.responseTtlSeconds | quote }}}
- {name: JETFLOCK_RESPONSE_STORE_BYTES, value: {{ $values.streams.responseStoreBytes | int64 | quote }}}
- {name: JETFLOCK_DEAD_TTL_S, value: {{ $values.streams.deadTtlSeconds | int64 | quote }}}
- {name: JETFLOCK_DEAD_MAX_BYTES, value: {{ $values.streams.deadMaxBytes | int64 | quote }}}
- {name: JETFLOCK_RESULTS_MAX_BYTES, value: {{ $values.streams.resultsMaxBytes | int64 | quote }}}
- {name: JETFLOCK_FILES_MAX_BYTES, value: {{ $values.streams.filesMaxBytes | int64 | quote }}}
- {name: JETFLOCK_OBJECTS_MAX_BYTES, value: {{ $values.streams.objectsMaxBytes | int64 | quote }}}
- {name: JETFLOCK_KEYS_MAX_BYTES, value: {{ $values.streams.keysMaxBytes | int64 | quote }}}
{{- if $values.streams.billsTtlSeconds }}
- {name: JETFLOCK_BILLS_TTL_S, value: {{ $values.streams.billsTtlSeconds | int64 | quote }}}
- {name: JETFLOCK_BILLS_MAX_BYTES, value: {{ $values.streams.billsMaxBytes | int64 | quote }}}
{{- end }}
- {name: JETFLOCK_LOG_LEVEL, value: {{ $values.logLevel | quote }}}
- {name: JETFLOCK_LOG_FORMAT, value: json}
{{- with $values.otel.endpoint }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- if ne $values.otel.samplingRatio nil }}
- {name: OTEL_TRACES_SAMPLER, value: parentbased_traceidratio}
- {name: OTEL_TRACES_SAMPLER_ARG, value: {{ $values.otel.samplingRatio | quote }}}
{{- end }}
{{- include "jetflock.loginEnv" (dict "type" $auth.type "secret" (get $auth .role) "variable" "JETFLOCK_NATS" "folder" "/etc/jetflock/nats") }}
{{- if eq .role "frontend" }}
- {name: JETFLOCK_NATS_CALLERS, value: {{ $values.nats.callers | quote }}}
{{- include "jetflock.loginEnv" (dict "type" $auth.type "secret" $auth.service "variable" "JETFLOCK_NATS_SERVICE" "folder" "/etc/jetflock/nats-service") }}
{{- include "jetflock.loginEnv" (dict "type" $auth.type "secret" $auth.eraser "variable" "JETFLOCK_NATS_ERASER" "folder" "/etc/jetflock/nats-eraser") }}
{{- end }}
{{- if $values.nats.tls.existingSecret }}
- {name: JETFLOCK_NATS_TLS_CA, value: /etc/jetflock/nats-tls/ca.crt}
{{- if $values.nats.tls.clientCertificate }}
- {name: JETFLOCK_NATS_TLS_CERT, value: /etc/jetflock/nats-tls/tls.crt}
- {name: JETFLOCK_NATS_TLS_KEY, value: /etc/jetflock/nats-tls/tls.key}
{{- end }}
{{- end }}
{{- end -}}

{{/* One user. (dict "type" "nkey" "secret" "nats-worker" "variable" "JETFLOCK_NATS" "folder" "/etc/...") */}}
{{- define "jetflock.loginEnv" -}}
{{- if .secret }}
{{- if eq .type "creds" }}
- {name: {{ .variable }}_CREDS, value: {{ .folder }}/user.creds}
{{- else if eq .type "nkey" }}
- {name: {{ .variable }}_NKEY_FILE, value: {{ .folder }}/user.nk}
{{- else }}
- name: {{ .variable }}_USER
  valueFrom:
    secretKeyRef: {name: {{ .secret | quote }}, key: username}
- {name: {{ .variable }}_PASSWORD_FILE, value: {{ .folder }}/password}
{{- end }}
{{- end }}
{{- end -}}

{{- define "jetflock.brokerMounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if get .root.Values.nats.auth .role }}
- {name: nats-auth, mountPath: /etc/jetflock/nats, readOnly: true}
{{- end }}
{{- if and (eq .role "frontend") .root.Values.nats.auth.service }}
- {name: nats-service, mountPath: /etc/jetflock/nats-service, readOnly: true}
{{- end }}
{{- if and (eq .role "frontend") .root.Values.nats.auth.eraser }}
- {name: nats-eraser, mountPath: /etc/jetflock/nats-eraser, readOnly: true}
{{- end }}
{{- if .root.Values.nats.tls.existingSecret }}
- {name: nats-tls, mountPath: /etc/jetflock/nats-tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "jetflock.brokerVolumes" -}}
- name: tmp
  emptyDir: {}
{{- with get .root.Values.nats.auth .role }}
- name: nats-auth
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- if and (eq .role "frontend") .root.Values.nats.auth.service }}
- name: nats-service
  secret: {secretName: {{ .root.Values.nats.auth.service | quote }}, defaultMode: 0440}
{{- end }}
{{- if and (eq .role "frontend") .root.Values.nats.auth.eraser }}
- name: nats-eraser
  secret: {secretName: {{ .root.Values.nats.auth.eraser | quote }}, defaultMode: 0440}
{{- end }}
{{- with .root.Values.nats.tls.existingSecret }}
- name: nats-tls
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* (dict "port" "http" "live" "/live" "ready" "/ready" "startupSeconds" 60) */}}
{{- define "jetflock.probes" -}}
startupProbe:
  httpGet: {path: {{ .live }}, port: {{ .port }}}
  periodSeconds: 5
  failureThreshold: {{ div (add .startupSeconds 4) 5 }}
readinessProbe:
  httpGet: {path: {{ .ready }}, port: {{ .port }}}
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  httpGet: {path: {{ .live }}, port: {{ .port }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
{{- end -}}

{{- define "jetflock.hubToken" -}}
{{- with .existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ . | quote }}, key: token}
{{- end }}
{{- end -}}

{{- define "jetflock.cacheVolume" -}}
- name: cache
  {{- if eq .cache.type "pvc" }}
  persistentVolumeClaim: {claimName: {{ default (printf "%s-cache" .fullname) .cache.existingClaim | quote }}}
  {{- else if eq .cache.type "hostPath" }}
  hostPath: {path: {{ .cache.hostPath | quote }}, type: DirectoryOrCreate}
  {{- else if .cache.sizeLimit }}
  emptyDir: {sizeLimit: {{ .cache.sizeLimit | quote }}}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end -}}

{{/* An HPA, if there is to be one. (dict "root" $ "component" "detok" "values" v) */}}
{{- define "jetflock.cpuScaler" -}}
{{- $scale := .values.autoscaling }}
{{- if $scale.enabled }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ include "jetflock.fullname" .root }}-{{ .component }}
  labels:
    {{- include "jetflock.labels" . | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ include "jetflock.fullname" .root }}-{{ .component }}
  minReplicas: {{ $scale.minReplicas }}
  maxReplicas: {{ $scale.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target: {type: Utilization, averageUtilization: {{ $scale.targetCPUUtilizationPercentage }}}
{{- end }}
{{- end -}}
