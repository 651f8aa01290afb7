# The trained agents (datasets/agents) inside the library: the bytes of each file as an array, made again where
# the file changes.
# automap_embed_agent(NAME HEADER)
function(automap_embed_agent name header)
  set(AGENT_NAME ${name}_agent)
  set(AGENT_FILE datasets/agents/${name}.safetensors)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${AGENT_FILE})
  file(READ ${CMAKE_SOURCE_DIR}/${AGENT_FILE} AGENT_BYTES HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" AGENT_BYTES "${AGENT_BYTES}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," AGENT_BYTES "${AGENT_BYTES}")
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${header} @ONLY CONTENT
    "/* From @AGENT_FILE@, by the build. */\nstatic const unsigned char @AGENT_NAME@[] = {\n@AGENT_BYTES@};\n")
endfunction()
automap_embed_agent(pipeline automap_agent.h)
automap_embed_agent(assignment automap_assignment.h)
